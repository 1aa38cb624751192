"""Timed loops, and clocks of several ranks."""

from __future__ import annotations

import gc
import itertools
import time

import numpy as np
import pytest

from bench.measure.clock import boot_id, clock_offsets_ns, host_loop, loop_for
from bench.measure.group import RankGroup


def test_before_is_outside_the_timed_window_and_order_is_kept() -> None:
    order: list[str] = []

    def before() -> None:
        order.append("before")
        time.sleep(0.005)

    entries, durations = host_loop(lambda: order.append("run"), before, 4)
    assert order == ["before", "run"] * 4
    assert max(durations) < 5_000_000
    assert all(b - a >= 5_000_000 for a, b in itertools.pairwise(entries))


def test_the_collector_rests_and_wakes_again_also_after_an_error() -> None:
    states = []
    host_loop(lambda: states.append(gc.isenabled()), lambda: None, 2)
    assert states == [False, False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        host_loop(lambda: 1 // 0, lambda: None, 1)  # type: ignore[arg-type, return-value]
    assert gc.isenabled()


def test_no_iterations_no_samples() -> None:
    assert host_loop(lambda: None, lambda: None, 0) == ([], [])


def test_loops_by_device() -> None:
    assert loop_for("cpu") is host_loop
    assert loop_for("cuda") is not host_loop


def test_one_host_one_clock() -> None:
    assert clock_offsets_ns(RankGroup()).tolist() == [0.0]
    assert boot_id() == boot_id() != ""


class TwoHosts(RankGroup):
    """Rank 0's end of a group whose other rank runs ``ahead_ns`` ahead on another host."""

    def __init__(self, ahead_ns: int) -> None:
        super().__init__()
        self.world = 2
        self.ahead_ns = ahead_ns

    def gather_objects(self, value: object) -> list[object]:
        return [value, "another boot"]

    def broadcast(self, value: object) -> object:
        return value

    def send(self, value: int, peer: int) -> None:
        time.sleep(0.0005)

    def receive(self, peer: int) -> int:
        there = time.perf_counter_ns() + self.ahead_ns
        time.sleep(0.0005)
        return there


@pytest.mark.parametrize("ahead_ns", [-5_000_000_000, 0, 7_000_000_000])
def test_another_hosts_clock_is_read_to_within_half_a_round_trip(ahead_ns: int) -> None:
    offsets = clock_offsets_ns(TwoHosts(ahead_ns))
    assert offsets[0] == 0
    assert np.isclose(offsets[1], ahead_ns, rtol=0, atol=1_000_000)
