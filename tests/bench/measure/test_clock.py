"""Timed loops, and clocks of several ranks."""

from __future__ import annotations

import gc
import itertools
import time

import numpy as np
import pytest

from bench.measure.clock import Loop, boot_id, clock_offsets_ns, cuda_loop, host_loop, loop_for
from bench.measure.group import RankGroup


def nothing() -> None:
    pass


def test_only_the_call_is_in_the_timed_window_and_order_is_kept() -> None:
    order: list[str] = []

    def barrier() -> None:
        order.append("barrier")
        time.sleep(0.005)

    calls = [lambda: order.append("one"), lambda: order.append("other")]
    entries, durations = host_loop(calls, lambda: order.append("prepare"), barrier)
    assert order == ["prepare", "barrier", "one", "prepare", "barrier", "other"]
    assert max(durations) < 5_000_000
    assert all(b - a >= 5_000_000 for a, b in itertools.pairwise(entries))


def test_the_devices_leftovers_are_done_before_the_barrier(cuda_calls: list[str]) -> None:
    barrier, run = (lambda: cuda_calls.append("barrier")), (lambda: cuda_calls.append("run"))
    entries, durations = cuda_loop([run] * 2, lambda: cuda_calls.append("prepare"), barrier)
    assert cuda_calls == ["prepare", "synchronize", "barrier", "record", "run", "record", "wait"] * 2
    assert len(entries) == len(durations) == 2
    assert min(durations) > 0


@pytest.mark.gpu
def test_events_time_what_the_device_does() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    size = 1 << 28
    ours, theirs = torch.empty(size, device="cuda"), torch.empty(size, device="cuda")

    def fill() -> None:
        theirs.fill_(1)

    def copy() -> None:
        ours.copy_(theirs)

    entries, durations = cuda_loop([copy] * 3, fill, nothing)
    assert sorted(entries) == entries
    # 2 GiB read and written: more than 100 us on any device, and less than the host's time from start to start.
    assert min(durations[1:]) > 100_000
    assert durations[1] < entries[2] - entries[1]
    assert bool((ours == 1).all())


@pytest.mark.parametrize("loop", [host_loop, cuda_loop])
def test_the_collector_rests_and_wakes_again_also_after_an_error(loop: Loop, cuda_calls: list[str]) -> None:
    states = []
    loop([lambda: states.append(gc.isenabled())] * 2, nothing, nothing)
    assert states == [False, False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        loop([lambda: 1 // 0], nothing, nothing)  # type: ignore[list-item]
    assert gc.isenabled()


def test_no_calls_no_samples() -> None:
    assert host_loop([], nothing, nothing) == ([], [])


def test_loops_by_device() -> None:
    assert loop_for("cpu") is host_loop
    assert loop_for("cuda") is cuda_loop


def test_one_host_one_clock() -> None:
    assert clock_offsets_ns(RankGroup()).tolist() == [0.0]
    assert boot_id() == boot_id() != ""


class Hosts(RankGroup):
    """Rank 0's end of a group whose other ranks run ``ahead_ns`` ahead, on hosts of ``ranks`` ranks each."""

    def __init__(self, ahead_ns: int, hosts: int = 2, ranks: int = 1) -> None:
        super().__init__()
        self.world = hosts * ranks
        self.boots = [f"boot {rank // ranks}" for rank in range(self.world)]
        self.ahead_ns = ahead_ns
        self.asked: list[int] = []
        self.gathers = 0

    def gather_objects(self, value: object) -> list[object]:
        self.gathers += 1
        return list(self.boots)

    def broadcast(self, value: object) -> object:
        return value

    def send(self, value: int, peer: int) -> None:
        self.asked.append(peer)
        time.sleep(0.0005)

    def receive(self, peer: int) -> int:
        there = time.perf_counter_ns() + self.ahead_ns
        time.sleep(0.0005)
        return there


@pytest.mark.parametrize("ahead_ns", [-5_000_000_000, 0, 7_000_000_000])
def test_another_hosts_clock_is_read_to_within_half_a_round_trip(ahead_ns: int) -> None:
    offsets = clock_offsets_ns(Hosts(ahead_ns))
    assert offsets[0] == 0
    assert np.isclose(offsets[1], ahead_ns, rtol=0, atol=1_000_000)


def test_one_rank_a_host_is_asked_and_the_answer_is_kept() -> None:
    group = Hosts(3_000_000_000, hosts=3, ranks=4)
    offsets = clock_offsets_ns(group)
    assert set(group.asked) == {4, 8}
    assert np.allclose(offsets, [0] * 4 + [3e9] * 8, rtol=0, atol=1e6)
    asked = len(group.asked)
    assert clock_offsets_ns(group).tolist() == offsets.tolist()
    assert (len(group.asked), group.gathers) == (asked, 1)


def test_an_old_reading_is_taken_again() -> None:
    group = Hosts(0)
    clock_offsets_ns(group)
    assert group.clocks is not None
    # A reading that took 16 ms or more is kept for at least 1.6 s.
    assert group.clocks.fresh_until_ns - time.perf_counter_ns() > 1_000_000_000
    group.clocks.fresh_until_ns = 0
    group.ahead_ns = 2_000_000_000
    assert clock_offsets_ns(group)[1] > 1e9


def test_ranks_of_one_host_exchange_no_readings() -> None:
    group = Hosts(0, hosts=1, ranks=8)
    assert clock_offsets_ns(group).tolist() == [0.0] * 8
    assert group.asked == []
