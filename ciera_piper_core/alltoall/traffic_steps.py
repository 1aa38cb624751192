"""Traffic that changes from one exchange to the next: a hot spot that moves on, and router traces replayed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from ciera_piper_core.alltoall import REPLAY, ROTATING
from ciera_piper_core.alltoall.router_trace import read_trace, replayed
from ciera_piper_core.alltoall.traffic import traffic_matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.alltoall import TrafficKind

MOST_ROTATION_STEPS = 16


def traffic_steps(kind: str, ranks: int, rows_per_rank: int, seed: int) -> NDArray[np.int64]:
    """Rows that each rank sends to each in each step: shape ``(steps, ranks, ranks)``, sender by receiver, int64.

    Kinds:
        those of ``traffic_matrix``: one step.
        rotating_hot_rank: as hot_rank, and in each step the hot rank is the next one; at most
            ``MOST_ROTATION_STEPS`` of them.
        replay:FILE: the steps of a router trace, see ``router_trace``.

    Raises:
        ValueError: as ``traffic_matrix`` and ``read_trace``.
    """
    if kind == ROTATING:
        first = traffic_matrix("hot_rank", ranks, rows_per_rank, seed)
        # Ranks are renamed, so every step is as hot as the first, to the row.
        return np.stack([np.roll(first, (step, step), axis=(0, 1)) for step in range(min(ranks, MOST_ROTATION_STEPS))])
    if kind.startswith(REPLAY):
        return replayed(read_trace(Path(kind.removeprefix(REPLAY))), ranks, rows_per_rank)
    return traffic_matrix(cast("TrafficKind", kind), ranks, rows_per_rank, seed)[np.newaxis]


def skew(matrix: NDArray[np.int64]) -> float:
    """The most that any rank sends or receives over the mean of what ranks send; 1 for even traffic, and for none.

    Args:
        matrix: ``(ranks, ranks)``, sender by receiver.
    """
    mean = float(matrix.sum()) / len(matrix)
    most = float(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))
    return most / mean if mean else 1.0
