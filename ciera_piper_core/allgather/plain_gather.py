"""The gather of a plan that codes nothing: the library's collective, with next to nothing around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.allgather.errors import collective_failure
from ciera_piper_core.allgather.work import GatherWork
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.allgather.agreement import Agreement
    from ciera_piper_core.allgather.lane import GatherLane


def gather_plain(lane: GatherLane, agreement: Agreement, out: torch.Tensor, shard: torch.Tensor) -> None:
    """Whole shards, or stages of them, to every rank; where the library cannot, padded to the largest.

    Args:
        out: of the whole output, flat. shard: of this rank, flat, of the same type.
    """
    if not agreement.most_values:
        return
    # As bytes, since gloo does not know all types.
    if agreement.dense:
        lane.all_gather(out.view(torch.uint8), shard.view(torch.uint8))
        return
    size = agreement.most_values * shard.element_size()
    received = lane.buffers.take(lane.world * size)
    places = received[: lane.world * size].view(lane.world, size)
    own = shard.view(torch.uint8)
    places[lane.rank, : own.numel()].copy_(own)
    lane.all_gather(received[: lane.world * size], places[lane.rank])
    for rank in range(lane.world):
        part = agreement.of_rank(out, rank).view(torch.uint8)
        part.copy_(places[rank, : part.numel()])
    lane.buffers.give(received)


class PlainGather:
    """Gathers shards as they are, in the order of the lane."""

    def __init__(
        self, agreement: Agreement, lane: GatherLane, done: Callable[[int], None], failed: Callable[[], None]
    ) -> None:
        """
        Args:
            done: called on the caller's thread after each gather, with the nanoseconds of its collective.
            failed: called for each that raises.
        """
        self._agreement = agreement
        self._lane = lane
        self._done = done
        self._failed = failed
        self._name = agreement.plans[0].name
        self.is_bare = agreement.dense and agreement.most_values > 0
        """Whether the library's collective does it all."""

    def gather(self, shard: torch.Tensor, out: torch.Tensor) -> None:
        """On this thread, while the lane is idle; both flat."""
        began = time.perf_counter_ns()
        self._run(shard, out)
        self._done(time.perf_counter_ns() - began)

    def start(self, shard: torch.Tensor, out: torch.Tensor, filled: torch.Tensor) -> GatherWork:
        """Asynchronously, after what is queued on the lane; ``filled`` is ``out`` as the caller knows it."""
        if self.is_bare and self._lane.idle:
            return self._start_bare(shard, out, filled)
        if not self._lane.is_clone:
            # Uneven shards have no asynchronous collective, and no other thread may use the program's group.
            self.gather(shard, out)
            return GatherWork(self._name, filled, None, lambda: None)
        began = time.perf_counter_ns()
        underway = self._lane.carry(lambda: self._run(shard, out))

        def end() -> None:
            underway.result()
            self._done(time.perf_counter_ns() - began)

        return GatherWork(self._name, filled, underway, end)

    def _run(self, shard: torch.Tensor, out: torch.Tensor) -> None:
        try:
            with region("allgather.collective"):
                gather_plain(self._lane, self._agreement, out, shard)
        except BaseException as error:
            raise self.abandoned(error) from error

    def _start_bare(self, shard: torch.Tensor, out: torch.Tensor, filled: torch.Tensor) -> GatherWork:
        """Have the library make it asynchronously; what the lane makes later comes after it."""
        began = time.perf_counter_ns()
        try:
            work = self._lane.start_all_gather(out.view(torch.uint8), shard.view(torch.uint8))
        except BaseException as error:
            raise self.abandoned(error) from error

        def end() -> None:
            try:
                if work is not None:
                    work.wait()
            except BaseException as error:
                raise self.abandoned(error) from error
            self._done(time.perf_counter_ns() - began)

        return GatherWork(self._name, filled, None, end)

    def abandoned(self, error: BaseException) -> BaseException:
        """What to raise where a collective did not come to its end; the lane is useless then."""
        self._failed()
        return collective_failure(error, self._name, self._lane)
