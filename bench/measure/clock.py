"""Timed loops on the host's monotonic clock or on device events, and clock offsets between hosts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.measure.group import RankGroup

Loop = Callable[[Callable[[], None], Callable[[], None], int], tuple[list[int], list[int]]]
"""``loop(run, before, n)`` -> entry times and durations of n iterations, in nanoseconds."""

CLOCK_SYNC_ROUNDS = 16


def host_loop(run: Callable[[], None], before: Callable[[], None], n: int) -> tuple[list[int], list[int]]:
    """Time ``n`` calls of ``run`` on the monotonic clock; ``before`` runs outside each timed window.

    The garbage collector is off inside, so that a collection never lands in a sample.

    Returns:
        entry times and durations, nanoseconds.
    """
    now = time.perf_counter_ns
    entries, durations = [0] * n, [0] * n
    collecting = gc.isenabled()
    gc.disable()
    try:
        for i in range(n):
            before()
            start = now()
            run()
            durations[i] = now() - start
            entries[i] = start
    finally:
        if collecting:
            gc.enable()
    return entries, durations


def cuda_loop(run: Callable[[], None], before: Callable[[], None], n: int) -> tuple[list[int], list[int]]:
    """Time ``n`` calls of ``run`` with CUDA events on the current stream.

    The device is idle when an iteration starts, and is waited for after it, so host work that
    ``run`` does between its kernels counts, and a start that was delayed by a peer does not.
    """
    import torch

    entries, durations = [0] * n, [0] * n
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    for i in range(n):
        before()
        torch.cuda.synchronize()
        entries[i] = time.perf_counter_ns()
        start.record()
        run()
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


def clock_offsets_ns(group: RankGroup) -> NDArray[np.float64]:
    """What to subtract from each rank's clock to read rank 0's, in nanoseconds; shape ``(world,)``.

    Ranks of rank 0's host share its clock exactly. For any other, rank 0 and the rank exchange
    clock readings and keep the round with the least round trip, whose half bounds the error.
    """
    boots = group.gather_objects(boot_id())
    offsets = np.zeros(group.world)
    for peer, boot in enumerate(boots):
        if boot != boots[0]:
            offsets[peer] = _offset_to_peer(group, peer)
    return np.asarray(group.broadcast(offsets))


def _offset_to_peer(group: RankGroup, peer: int) -> float:
    """Ping-pong between rank 0 and ``peer`` over the control group; meaningful on rank 0."""
    if group.rank not in (0, peer):
        return 0.0
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
    return offset
