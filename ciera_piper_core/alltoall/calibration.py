"""Measures the algorithms on the spot, for a choice between them where no profile did."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.counts import group_device
from ciera_piper_core.alltoall.crossovers import Crossovers, from_points, kind_skew
from ciera_piper_core.alltoall.traffic import traffic_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.alltoall import AllToAll, TrafficKind

SIZES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22))
"""Bytes that each rank sends, from small to large."""

TRAFFIC: tuple[TrafficKind, ...] = ("uniform", "idle_rank", "hot_rank")
"""Equal shares; uneven ones that are hardly skewed; and half of all to one rank."""

ROUNDS = 9
"""At once; as many again, up to ``MOST_ROUNDS``, while it is not sure that who seems faster than flat is so."""

MOST_ROUNDS = 45

QUANTILE = 0.25
"""Of flat's rounds: what interferes only ever makes a round longer."""

SURE = 0.8
"""Confidence with which an algorithm must beat flat in the median round; who does not counts as no faster."""

LIMIT_SECONDS = 4.0
"""For each kind of traffic; a larger size is not begun after that. Further rounds may take as long again."""

ROW_BYTES = 64


def calibrated(
    group: dist.ProcessGroup, algorithms: Mapping[str, AllToAll], nodes: int, limit_seconds: float = LIMIT_SECONDS
) -> Crossovers:
    """Curves of ``algorithms`` on this group, the same on all ranks (collective).

    Algorithms take turns within a round, so that a machine that changes meanwhile changes for all
    of them. Each time is the slowest rank's, counts of uneven shares included.

    Args:
        algorithms: by name, flat among them, all bound to ``group``.
        nodes: that the group is on.
        limit_seconds: for each kind of traffic, as ``LIMIT_SECONDS`` has it.
    """
    ranks, names = dist.get_world_size(group), list(algorithms)
    points: list[tuple[str, int, int, str, float, float]] = []
    for kind in TRAFFIC:
        cells: list[_Cell] = []
        for size in SIZES:
            cells.append(_Cell(group, algorithms, kind, max(ranks, size // ROW_BYTES // ranks * ranks)))
            cells[-1].measure()
            if sum(cell.spent_s for cell in cells) > limit_seconds:
                break
        _measure_further(cells, limit_seconds)
        for cell in cells:
            for name, seconds in zip(names, settled_seconds(cell.by_round, cell.flat), strict=True):
                points.append((name, nodes, ranks, kind, float(cell.rows * ROW_BYTES), seconds))
    skews: dict[tuple[str, int], float] = {(kind, ranks): kind_skew(kind, ranks) for kind in TRAFFIC}
    return from_points(points, skews, "measured at set-up")


def _measure_further(cells: list[_Cell], limit_seconds: float) -> None:
    """More rounds for cells that are not sure, in turn, for about as long."""
    begun_s = sum(cell.spent_s for cell in cells)
    while wanting := [cell for cell in cells if cell.unsure and len(cell.by_round) < MOST_ROUNDS]:
        for cell in wanting:
            if sum(each.spent_s for each in cells) - begun_s >= limit_seconds:
                return
            cell.measure()


class _Cell:
    """One size of one kind of traffic, as it is measured.

    Attributes:
        rows: that each rank sends on average.
        flat: number of the flat algorithm.
        by_round: seconds of the slowest rank, shape ``(rounds, algorithms)``, float64, the same on all ranks.
        spent_s: seconds that it took, likewise.
    """

    def __init__(
        self, group: dist.ProcessGroup, algorithms: Mapping[str, AllToAll], kind: TrafficKind, rows: int
    ) -> None:
        rank, ranks, self._device = dist.get_rank(group), dist.get_world_size(group), group_device(group)
        matrix = traffic_matrix(kind, ranks, rows, seed=0)
        uneven = kind != "uniform"
        self._send_splits = matrix[rank].tolist() if uneven else None
        self._recv_splits = matrix[:, rank].tolist() if uneven else None
        sent, received = int(matrix[rank].sum()), int(matrix[:, rank].sum())
        self._send = torch.zeros((sent, ROW_BYTES // 8), dtype=torch.int64, device=self._device)
        self._out = torch.empty((received, ROW_BYTES // 8), dtype=torch.int64, device=self._device)
        self._group, self._algorithms = group, list(algorithms.values())
        self.rows, self.flat = rows, list(algorithms).index("flat")
        self.by_round = torch.empty((0, len(algorithms)), dtype=torch.float64)
        self.spent_s = 0.0

    @property
    def unsure(self) -> bool:
        """Whether more rounds may tell more."""
        return bool(_unsure(self.by_round, self.flat).any())

    def measure(self) -> None:
        """``ROUNDS`` more (collective)."""
        begin = time.perf_counter()
        if not len(self.by_round):
            # To warm up: connections, buffers.
            for algorithm in self._algorithms:
                self._timed(algorithm)
        batch = torch.empty((ROUNDS, len(self._algorithms)), dtype=torch.float64)
        for number, durations in enumerate(batch):
            # Who follows whom changes: an exchange leaves its ranks more or less together.
            for place in range(len(durations)):
                turn = (place + number) % len(durations)
                durations[turn] = self._timed(self._algorithms[turn])
        *slowest, spent = _latest(self._group, [*batch.flatten().tolist(), time.perf_counter() - begin])
        self.by_round = torch.cat([self.by_round, torch.tensor(slowest, dtype=torch.float64).view(batch.shape)])
        self.spent_s += spent

    def _timed(self, algorithm: AllToAll) -> float:
        _latest(self._group, [0.0])
        begin = time.perf_counter()
        algorithm.exchange(self._send, self._send_splits, self._recv_splits, self._out)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin


def settled_seconds(by_round: torch.Tensor, flat: int) -> list[float]:
    """One time for each algorithm from all rounds.

    Flat's is its lower quartile. The others' follow from their ratio to flat in the same round, the
    median; whoever did not surely beat flat counts as no faster than it.

    Args:
        by_round: seconds, shape ``(rounds, algorithms)``, float64.
        flat: its column.
    """
    middle = _ratios(by_round, flat).median(dim=0).values.masked_fill(_unsure(by_round, flat), 1.0)
    result: list[float] = (by_round[:, flat].quantile(QUANTILE) * middle).tolist()
    return result


def _ratios(by_round: torch.Tensor, flat: int) -> torch.Tensor:
    return by_round / by_round[:, flat : flat + 1]


def _unsure(by_round: torch.Tensor, flat: int) -> torch.Tensor:
    """Of each algorithm whether it seems faster than flat, but not with the confidence ``SURE``.

    If it were no faster, it would win each round with an even chance, so as many rounds or more by
    luck as a fair coin shows so many heads.
    """
    ratios, rounds = _ratios(by_round, flat), len(by_round)
    lost = (ratios >= 1).sum(dim=0).tolist()
    luck = [sum(math.comb(rounds, count) for count in range(each + 1)) / 2**rounds for each in lost]
    return (ratios.median(dim=0).values < 1) & (torch.tensor(luck) > 1 - SURE)


def _latest(group: dist.ProcessGroup, numbers: list[float]) -> list[float]:
    """Each number's maximum over ranks."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=group_device(group))
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    result: list[float] = tensor.tolist()
    return result
