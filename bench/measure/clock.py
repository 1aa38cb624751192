"""Timed loops on the host's monotonic clock or on device events, and clock offsets between hosts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.measure.group import RankGroup

Call = Callable[[], None]
Loop = Callable[[Sequence[Call], Call, Call], tuple[list[int], list[int]]]
"""``loop(calls, prepare, barrier)`` -> entry time and duration of each call, in nanoseconds."""

CLOCK_SYNC_ROUNDS = 16
READ_SHARE = 0.01
"""Most of a run's time that reading the other hosts' clocks may take."""


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep Python's garbage collector from landing in a sample."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def host_loop(calls: Sequence[Call], prepare: Call, barrier: Call) -> tuple[list[int], list[int]]:
    """Time each of ``calls`` on the monotonic clock; ``prepare`` and ``barrier`` come before each, untimed.

    Returns:
        entry times and durations, nanoseconds.
    """
    now = time.perf_counter_ns
    entries, durations = [0] * len(calls), [0] * len(calls)
    with _collector_off():
        for i, call in enumerate(calls):
            prepare()
            barrier()
            start = now()
            call()
            durations[i] = now() - start
            entries[i] = start
    return entries, durations


def cuda_loop(calls: Sequence[Call], prepare: Call, barrier: Call) -> tuple[list[int], list[int]]:
    """As ``host_loop``, with CUDA events on the current stream.

    The device is idle when a call starts, and is waited for after it, so host work that the call
    does between its kernels counts, and a start that was delayed by a peer does not. What
    ``prepare`` left to the device is done before the barrier: after it, it would part the ranks again.
    """
    import torch

    entries, durations = [0] * len(calls), [0] * len(calls)
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    with _collector_off():
        for i, call in enumerate(calls):
            prepare()
            torch.cuda.synchronize()
            barrier()
            entries[i] = time.perf_counter_ns()
            start.record()
            call()
            end.record()
            end.synchronize()
            durations[i] = round(start.elapsed_time(end) * 1e6)
    return entries, durations


def loop_for(device: str) -> Loop:
    """The timed loop of a device, ``cpu`` or ``cuda``."""
    return cuda_loop if device == "cuda" else host_loop


def boot_id() -> str:
    """Identifies one boot of one host: processes with the same id share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import socket

        return socket.gethostname()


@dataclass
class ClockReading:
    """What a group knows of its hosts' clocks; kept for the life of the group.

    Attributes:
        host_of_rank: index of each rank's host, shape ``(world,)``.
        first_ranks: of each host, the rank whose clock is read.
        offsets_ns: of each host's clock from rank 0's, shape ``(hosts,)``.
        errors_ns: bounds of the offsets' errors when they were read, shape ``(hosts,)``.
        fresh_until_ns: when to read again, on this rank's own clock; only rank 0's counts.
    """

    host_of_rank: NDArray[np.int64]
    first_ranks: NDArray[np.int64]
    offsets_ns: NDArray[np.float64]
    errors_ns: NDArray[np.float64]
    fresh_until_ns: int = 0


def clock_offsets_ns(group: RankGroup) -> NDArray[np.float64]:
    """What to subtract from each rank's clock to read rank 0's, in nanoseconds; shape ``(world,)`` (collective).

    Ranks of one host share its clock exactly. For any other host, rank 0 and one rank there
    exchange clock readings and keep the round with the least round trip, whose half bounds the error.
    A reading is kept until ``READ_SHARE`` allows the next: for two hosts that is nearly every case,
    for hundreds it is every minute or two. Between readings the clocks may part by their drift.
    """
    if group.clocks is None:
        boots = group.gather_objects(boot_id())
        _, first_ranks, host_of_rank = np.unique(boots, return_index=True, return_inverse=True)
        zeros = np.zeros(len(first_ranks))
        group.clocks = ClockReading(host_of_rank, first_ranks, zeros, zeros)
    clocks = group.clocks
    if len(clocks.first_ranks) > 1 and group.broadcast(time.perf_counter_ns() >= clocks.fresh_until_ns):
        began = time.perf_counter_ns()
        read = [_offset_to_peer(group, int(peer)) if peer else (0.0, 0.0) for peer in clocks.first_ranks]
        clocks.offsets_ns, clocks.errors_ns = np.asarray(group.broadcast(read)).T
        ended = time.perf_counter_ns()
        clocks.fresh_until_ns = ended + round((ended - began) / READ_SHARE)
    return clocks.offsets_ns[clocks.host_of_rank]


def clock_errors_ns(group: RankGroup) -> NDArray[np.float64]:
    """By how much each of ``clock_offsets_ns`` may be off, as last read; shape ``(world,)``. Read the offsets first."""
    return np.zeros(group.world) if group.clocks is None else group.clocks.errors_ns[group.clocks.host_of_rank]


def _offset_to_peer(group: RankGroup, peer: int) -> tuple[float, float]:
    """Ping-pong between rank 0 and ``peer`` over the control group: offset and error; meaningful on rank 0."""
    if group.rank not in (0, peer):
        return 0.0, 0.0
    best_round_trip, offset = float("inf"), 0.0
    for _ in range(CLOCK_SYNC_ROUNDS):
        if group.rank == 0:
            sent = time.perf_counter_ns()
            group.send(sent, peer)
            there = group.receive(peer)
            back = time.perf_counter_ns()
            if back - sent < best_round_trip:
                best_round_trip, offset = back - sent, there - (sent + back) / 2
        else:
            group.receive(0)
            group.send(time.perf_counter_ns(), 0)
    return offset, best_round_trip / 2
