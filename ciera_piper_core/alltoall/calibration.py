"""Measures the algorithms on the spot, for a choice between them where no profile did."""

from __future__ import annotations

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

TRAFFIC: tuple[TrafficKind, ...] = ("uniform", "hot_rank")
ROUNDS = 7
LIMIT_SECONDS = 2.0
"""For each kind of traffic; a larger size is not begun after that."""

ROW_BYTES = 64


def calibrated(
    group: dist.ProcessGroup, algorithms: Mapping[str, AllToAll], nodes: int, limit_seconds: float = LIMIT_SECONDS
) -> Crossovers:
    """Curves of ``algorithms`` on this group, the same on all ranks (collective).

    Algorithms take turns within a round, so that a machine that changes meanwhile changes for all
    of them. Each time is the slowest rank's; the median of the rounds counts.

    Args:
        algorithms: by name, flat among them, all bound to ``group``.
        nodes: that the group is on.
        limit_seconds: about the longest that one kind of traffic takes.
    """
    ranks, names = dist.get_world_size(group), list(algorithms)
    points: list[tuple[str, int, int, str, float, float]] = []
    for kind in TRAFFIC:
        begin = time.perf_counter()
        for size in SIZES:
            rows = max(ranks, size // ROW_BYTES)
            for name, seconds in zip(names, _seconds(group, algorithms, kind, rows), strict=True):
                points.append((name, nodes, ranks, kind, float(rows * ROW_BYTES), seconds))
            if _latest(group, [time.perf_counter() - begin])[0] > limit_seconds:
                break
    skews = {(kind, ranks): kind_skew(kind, ranks) for kind in TRAFFIC}
    return from_points(points, skews, "measured at set-up")


def _seconds(
    group: dist.ProcessGroup, algorithms: Mapping[str, AllToAll], kind: TrafficKind, rows: int
) -> list[float]:
    """By algorithm, the median over rounds of the slowest rank's time."""
    rank, device = dist.get_rank(group), group_device(group)
    matrix = traffic_matrix(kind, dist.get_world_size(group), rows, seed=0)
    send_splits, recv_splits = (tuple(splits.tolist()) for splits in (matrix[rank], matrix[:, rank]))
    send = torch.zeros((sum(send_splits), ROW_BYTES // 8), dtype=torch.int64, device=device)
    out = torch.empty((sum(recv_splits), ROW_BYTES // 8), dtype=torch.int64, device=device)
    plans = [algorithm.plan(send_splits, recv_splits) for algorithm in algorithms.values()]
    rounds = []
    # The first round warms up: connections, buffers.
    for _ in range(ROUNDS + 1):
        durations = []
        for algorithm, plan in zip(algorithms.values(), plans, strict=True):
            _latest(group, [0.0])
            begin = time.perf_counter()
            algorithm.run(plan, send, out)
            if device.type == "cuda":
                torch.cuda.synchronize()
            durations.append(time.perf_counter() - begin)
        rounds.append(durations)
    slowest = _latest(group, [duration for durations in rounds[1:] for duration in durations])
    return torch.tensor(slowest, dtype=torch.float64).view(ROUNDS, len(plans)).median(0).values.tolist()


def _latest(group: dist.ProcessGroup, numbers: list[float]) -> list[float]:
    """Each number's maximum over ranks."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=group_device(group))
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    result: list[float] = tensor.tolist()
    return result
