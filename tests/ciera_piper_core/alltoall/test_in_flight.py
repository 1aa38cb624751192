"""Exchanges under way: several on several groups, one at a time on each, and what a second thread is told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.in_flight import ThreadedWork
from ciera_piper_core.alltoall.placement import even_placement
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

NAMES = ("flat", "two_phase", "halo_v0", "halo_v1", "halo_v2")


def numbers(rank: int, world: int, first: int = 0) -> torch.Tensor:
    """Row j of rank i is 10 i + j."""
    return torch.arange(world)[:, None] + 10 * rank + first


def arrived(rank: int, world: int, first: int = 0) -> torch.Tensor:
    return (torch.arange(world) * 10 + rank)[:, None] + first


@pytest.mark.parametrize("names", [("halo_v1", "halo_v2"), ("two_phase", "flat"), ("halo_v0", "halo_v0")])
def test_two_exchanges_in_flight_on_two_groups(names: tuple[str, str], tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        first, second = (make_all_to_all(name, dist.new_group(list(range(4))), even_placement(4, 2)) for name in names)
        for number in range(5):
            one, two = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64)
            # Ranks begin and end them in different orders.
            pair = [(first, one, number), (second, two, number + 100)][:: 1 if rank % 2 else -1]
            works = [algorithm.start(numbers(rank, 4, start), None, None, out) for algorithm, out, start in pair]
            for work in works[::-1]:
                work.wait()
            assert torch.equal(one, arrived(rank, 4, number))
            assert torch.equal(two, arrived(rank, 4, number + 100))

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_thread_on_the_group_is_refused(name: str, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank, group = context.group.rank, context.group.data
        assert group is not None
        mine = make_all_to_all(name, group, even_placement(4, 2))
        other = make_all_to_all("flat", group)
        out = torch.zeros(4, 1, dtype=torch.int64)
        refusals: list[str] = []

        def meanwhile() -> None:
            try:
                other.exchange(numbers(rank, 4), None, None, torch.zeros(4, 1, dtype=torch.int64))
            except RuntimeError as error:
                refusals.append(str(error))

        if rank == 0:
            # The others have not begun, so this one cannot be over.
            work = mine.start(numbers(rank, 4), None, None, out)
            intruder = threading.Thread(target=meanwhile, name="intruder")
            intruder.start()
            intruder.join()
            meanwhile()
            context.group.barrier()
        else:
            context.group.barrier()
            work = mine.start(numbers(rank, 4), None, None, out)
        work.wait()
        work.wait()
        assert torch.equal(out, arrived(rank, 4))
        if rank == 0:
            for refusal, thread in zip(refusals, ("intruder", "MainThread"), strict=True):
                assert f"an exchange by flat in thread '{thread}' cannot begin" in refusal
                assert (
                    f"in use by an exchange by {name}, started and not yet waited for, of thread 'MainThread'"
                    in refusal
                )
                assert "use a second group" in refusal
        # The refusals left nothing behind.
        other.exchange(numbers(rank, 4), None, None, out.zero_())
        assert torch.equal(out, arrived(rank, 4))

    run_world(4, body, tmp_path)


def test_work_runs_while_the_caller_goes_on() -> None:
    go, ended = threading.Event(), []
    work = ThreadedWork(lambda: go.wait(10) and None, lambda: ended.append(1), "test")
    assert not work.done()
    go.set()
    work.wait()
    work.wait()
    assert work.done()
    assert ended == [1]


def test_every_wait_raises_what_went_wrong() -> None:
    def body() -> None:
        time.sleep(0.01)
        raise RuntimeError("lost")

    ended: list[int] = []
    work = ThreadedWork(body, lambda: ended.append(1), "test")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost"):
            work.wait()
    assert ended == [1]
