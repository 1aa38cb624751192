"""The workload of an all-to-all whose traffic may change from call to call, beside a flat one to compare with.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bench.suite import Workload
from suites.exchange import POISON, KeyedData, Part, filled, wrong_elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.definitions import Work
    from ciera_piper_core.alltoall import AllToAll


@dataclass(frozen=True)
class Step:
    """One exchange, as a rank sees it.

    Attributes:
        send_splits, recv_splits: rows; None for equal shares.
        sent, received: rows in all.
        parts: of what must come out.
    """

    send_splits: tuple[int, ...] | None
    recv_splits: tuple[int, ...] | None
    sent: int
    received: int
    parts: tuple[Part, ...]


def steps_of_traffic(traffic: Any, rank: int, width: int) -> list[Step]:
    """What ``rank`` does in each step.

    Args:
        traffic: rows from each rank to each, shape ``(steps, ranks, ranks)``, sender by receiver (a numpy array).
        width: elements of a row.
    """
    steps = []
    for rows in traffic:
        send_splits, recv_splits = tuple(rows[rank].tolist()), tuple(rows[:, rank].tolist())
        firsts = rows[:, :rank].sum(axis=1).tolist()
        parts = tuple(
            Part(sender, first * width, count * width)
            for sender, (first, count) in enumerate(zip(firsts, recv_splits, strict=True))
        )
        # Shares that are equal on all ranks can be announced as such.
        even = bool((rows == rows[0, 0]).all())
        steps.append(
            Step(
                None if even else send_splits,
                None if even else recv_splits,
                sum(send_splits),
                sum(recv_splits),
                parts,
            )
        )
    return steps


class SteppedExchange(Workload):
    """The steps in turn, one an iteration.

    Args:
        algorithm: that is measured. flat: that it is compared with, or None.
        steps: at least one.
        width: elements of a row.
        dtype, device: of the rows.
        data: what the ranks send. rank: this one.
        work: for the definitions.
    """

    def __init__(
        self,
        algorithm: AllToAll,
        flat: AllToAll | None,
        steps: Sequence[Step],
        width: int,
        dtype: torch.dtype,
        device: str,
        data: KeyedData,
        rank: int,
        work: Work,
    ) -> None:
        self.work = work
        self._algorithm, self._flat = algorithm, flat
        self._steps, self._data = steps, data
        most_sent, most_received = max(step.sent for step in steps), max(step.received for step in steps)
        # A step that sends less sends the beginning of the same data.
        self._send = filled(torch.empty((most_sent, width), dtype=dtype, device=device), data, rank)
        self._received = torch.full((most_received, width), POISON, dtype=dtype, device=device)
        self._from_flat = None if flat is None else torch.empty_like(self._received)
        self.baseline = None if flat is None else self._run_flat
        self._prepared = 0
        self._ran = steps[0]

    def _step(self) -> Step:
        """Both sides of a comparison see the same step: each is prepared for once."""
        turns = 1 if self._flat is None else 2
        return self._steps[max(0, self._prepared - 1) // turns % len(self._steps)]

    def prepare(self) -> None:
        self._prepared += 1

    def run(self) -> None:
        self._ran = self._step()
        self._exchange(self._algorithm, self._ran, self._received)

    def _run_flat(self) -> None:
        assert self._flat is not None
        assert self._from_flat is not None
        self._exchange(self._flat, self._step(), self._from_flat)

    def _exchange(self, algorithm: AllToAll, step: Step, received: torch.Tensor) -> None:
        algorithm.exchange(self._send[: step.sent], step.send_splits, step.recv_splits, received[: step.received])

    def check(self) -> int:
        """Wrong elements that the last call left, and those of every step into a poisoned output; all count."""
        wrong = self._wrong(self._ran)
        for step in self._steps:
            self._received.fill_(POISON)
            self._exchange(self._algorithm, step, self._received)
            wrong += self._wrong(step)
        return wrong

    def _wrong(self, step: Step) -> int:
        return wrong_elements(self._received[: step.received], step.parts, self._data)
