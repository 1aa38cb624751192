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

SURE = 0.9
"""Confidence with which an algorithm must beat flat in the median round; who does not counts as no faster."""

LIMIT_SECONDS = 4.0
"""For each kind of traffic; a larger size is not begun after that, and one size gets further rounds for a quarter."""

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
        limit_seconds: about the longest that one kind of traffic takes, but for the last size.
    """
    ranks, names = dist.get_world_size(group), list(algorithms)
    points: list[tuple[str, int, int, str, float, float]] = []
    for kind in TRAFFIC:
        begin = time.perf_counter()
        for size in SIZES:
            rows = max(ranks, size // ROW_BYTES // ranks * ranks)
            found = _seconds(group, algorithms, kind, rows, limit_seconds / 4)
            for name, seconds in zip(names, found, strict=True):
                points.append((name, nodes, ranks, kind, float(rows * ROW_BYTES), seconds))
            if _latest(group, [time.perf_counter() - begin])[0] > limit_seconds:
                break
    skews: dict[tuple[str, int], float] = {(kind, ranks): kind_skew(kind, ranks) for kind in TRAFFIC}
    return from_points(points, skews, "measured at set-up")


def _seconds(
    group: dist.ProcessGroup, algorithms: Mapping[str, AllToAll], kind: TrafficKind, rows: int, limit_seconds: float
) -> list[float]:
    """By algorithm, the time of the slowest rank, as ``settled_seconds`` has it."""
    rank, ranks, device = dist.get_rank(group), dist.get_world_size(group), group_device(group)
    matrix = traffic_matrix(kind, ranks, rows, seed=0)
    send_splits: list[int] | None = matrix[rank].tolist()
    recv_splits: list[int] | None = matrix[:, rank].tolist()
    send = torch.zeros((int(matrix[rank].sum()), ROW_BYTES // 8), dtype=torch.int64, device=device)
    out = torch.empty((int(matrix[:, rank].sum()), ROW_BYTES // 8), dtype=torch.int64, device=device)
    if kind == "uniform":
        send_splits = recv_splits = None

    def timed(algorithm: AllToAll) -> float:
        _latest(group, [0.0])
        begin = time.perf_counter()
        algorithm.exchange(send, send_splits, recv_splits, out)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    flat, by_round = list(algorithms).index("flat"), torch.empty((0, len(algorithms)), dtype=torch.float64)
    # The first round warms up: connections, buffers.
    for algorithm in algorithms.values():
        timed(algorithm)
    begin = time.perf_counter()
    while True:
        batch = torch.empty((ROUNDS, len(algorithms)), dtype=torch.float64)
        for number, durations in enumerate(batch):
            # Who follows whom changes: an exchange leaves its ranks more or less together.
            for place in range(len(algorithms)):
                turn = (place + number) % len(algorithms)
                durations[turn] = timed(list(algorithms.values())[turn])
        *slowest, spent = _latest(group, [*batch.flatten().tolist(), time.perf_counter() - begin])
        by_round = torch.cat([by_round, torch.tensor(slowest, dtype=torch.float64).view(batch.shape)])
        if spent > limit_seconds or len(by_round) >= MOST_ROUNDS or not _unsure(by_round, flat).any():
            return settled_seconds(by_round, flat)


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
