"""The workloads of dispatching routed tokens and of combining what the experts make of them, with their oracle.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bench.suite import Workload
from suites.exchange import KeyedData, Part, filled, wrong_elements
from suites.placement_bound import LeastBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bench.definitions import Work
    from ciera_piper_core.alltoall.dispatch import Dispatched, Dispatcher
    from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic


def rows_between(tables: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """A row for each choice: rows from each rank to each, shape ``(ranks, ranks)``, int64.

    Args:
        tables: by source rank, the rank of each choice, shape ``(tokens, k)``.
    """
    return np.stack([np.bincount(table.ravel(), minlength=len(tables)) for table in tables]).astype(np.int64)


def least_bytes_of_dispatch(
    tables: Sequence[NDArray[np.int64]], row_bytes: int, node_of_rank: Sequence[int]
) -> LeastBytes:
    """What must move at least so that every rank has each of its tokens once: the bound of both directions.

    A token that several ranks of a node need crosses to it once; a rank that needs it for several
    choices copies it.
    """
    ranks, node = len(tables), np.asarray(node_of_rank)
    into_rank, total = np.zeros(ranks, dtype=np.int64), 0
    out_of_node, into_node = (dict.fromkeys(node_of_rank, 0) for _ in range(2))
    for source, table in enumerate(tables):
        needed = np.zeros((len(table), ranks), dtype=bool)
        np.put_along_axis(needed, table, True, axis=1)
        needed[:, source] = False
        into_rank += needed.sum(axis=0)
        total += int(needed.sum())
        for other in into_node:
            if other != node[source]:
                crossing = int(needed[:, node == other].any(axis=1).sum())
                out_of_node[node_of_rank[source]] += crossing
                into_node[other] += crossing
    link = max(*out_of_node.values(), *into_node.values())
    return LeastBytes(total * row_bytes, link * row_bytes, int(into_rank.max()) * row_bytes)


class DispatchWorkload(Workload):
    """Tokens to the ranks of their choices (``op=dispatch``), or back from them (``op=combine``).

    What comes back from each choice is the token itself, so a combined token is ``k`` times it:
    small whole numbers, which every dtype holds and adds exactly.

    Args:
        combines: measure the way back.
        dispatcher: that is measured. flat: that it is compared with, or None.
        tables: by source rank, the rank of each choice.
        rank: this one.
        width: elements of a token.
        gather: hands every rank's object to all (collective).
    """

    def __init__(
        self,
        combines: bool,
        dispatcher: Dispatcher,
        flat: Dispatcher | None,
        tables: Sequence[NDArray[np.int64]],
        rank: int,
        width: int,
        dtype: torch.dtype,
        device: str,
        seed: int,
        work: Work,
        gather: Callable[[Any], list[Any]],
    ) -> None:
        self.work = work
        self._combines, self._tables, self._rank, self._width = combines, tables, rank, width
        # Sums of its elements stay exact; see there.
        self._data = KeyedData(seed, len(tables), summed=True)
        mine = tables[rank]
        self._tokens = filled(torch.empty((len(mine), width), dtype=dtype, device=device), self._data, rank)
        self._ranks = torch.from_numpy(mine).to(device)
        weighted = dtype.is_floating_point
        self._weights = torch.ones(mine.shape, dtype=torch.float32, device=device) if weighted else None
        self._call = self._prepared(dispatcher)
        self._result = self._call()
        if flat is not None:
            call = self._prepared(flat)

            def baseline() -> None:
                call()

            self.baseline = baseline
        traffic = self._dispatch(dispatcher).traffic
        self._share = sent_share(gather(traffic))

    def _dispatch(self, dispatcher: Dispatcher) -> Dispatched:
        return dispatcher.dispatch(self._tokens, self._ranks, self._weights)

    def _prepared(self, dispatcher: Dispatcher) -> Callable[[], torch.Tensor]:
        if not self._combines:
            return lambda: self._dispatch(dispatcher).rows
        sent = self._dispatch(dispatcher)
        return lambda: sent.combine(sent.rows)

    def run(self) -> None:
        with torch.no_grad():
            self._result = self._call()

    def check(self) -> int:
        """Wrong elements of the last call, and of one more."""
        wrong = self._wrong()
        self.run()
        return wrong + self._wrong()

    def _wrong(self) -> int:
        if self._combines:
            expected = self._tokens * self._ranks.shape[1]
            return int(torch.count_nonzero(self._result != expected))
        parts = [
            Part(source, int(token) * self._width, self._width)
            for source, table in enumerate(self._tables)
            for token in np.nonzero(table == self._rank)[0]
        ]
        return wrong_elements(self._result.contiguous(), parts, self._data)

    def observations(self) -> Mapping[str, Sequence[float]]:
        return {"sent_share": [self._share]}


def sent_share(traffic: Sequence[DispatchTraffic]) -> float:
    """Of all ranks together; see the metric's definition. 1 where nothing has to be sent."""
    between = sum(one.logical_between for one in traffic)
    if between:
        return sum(one.sent_between + one.routing_between for one in traffic) / between
    within = sum(one.logical_within for one in traffic)
    return sum(one.sent_within + one.routing_within for one in traffic) / within if within else 1.0
