"""Least memory of a GPU over expert parallelism, for some numbers of GPUs: the paper's Fig 10 for any question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.candidates import candidates
from ciera_piper_core.planner.estimate import Estimator, groups
from ciera_piper_core.planner.fitting import LEAST_MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.planner.strategy import Question


@dataclass(frozen=True)
class EpPoint:
    """The strategy that needs the least memory with one EP.

    Attributes:
        gpus, ep: of it. pp, tp: that it has.
        peak_memory_bytes: of its fullest rank. state_bytes: weights, gradients and optimizer of that.
        single_hop: whether its expert-parallel group stays within one hop; the search refuses it if not.
    """

    gpus: int
    ep: int
    pp: int
    tp: int
    peak_memory_bytes: float
    state_bytes: float
    single_hop: bool


def memory_over_ep(question: Question, gpu_counts: Sequence[int]) -> list[EpPoint]:
    """Points by GPUs and EP, ordered; with full checkpointing, sharded state and the smallest microbatches.

    EP is not held within one hop here, as in the paper's figure; each point says whether it is.
    """
    anywhere = replace(question.platform, single_hop_nodes=question.platform.max_gpus)
    only = {**question.only, **LEAST_MEMORY}
    for name in ("pp", "ep", "dp", "tp"):
        only.pop(name, None)
    found = []
    for gpus in gpu_counts:
        asked = replace(question, gpus=gpus, platform=anywhere, only=only)
        estimator = Estimator(asked)
        strategies, _ = candidates(asked, estimator.kinds, smallest_microbatches=True)
        if not len(strategies):
            continue
        peak, state = np.zeros(len(strategies)), np.zeros(len(strategies))
        for pp, schedule, here in groups(strategies):
            rows = strategies.take(here)
            by_rank = estimator.footprint.rank_bytes(pp, schedule, rows)
            fullest = by_rank.argmax(axis=1)[:, None]
            peak[here] = np.take_along_axis(by_rank, fullest, axis=1)[:, 0]
            static = estimator.footprint.state_bytes(pp, schedule, rows)
            state[here] = np.take_along_axis(static, fullest, axis=1)[:, 0]
        for ep in np.unique(strategies.ep):
            places = np.flatnonzero(strategies.ep == ep)
            best = strategies[int(places[np.argmin(peak[places])])]
            place = int(places[np.argmin(peak[places])])
            hop = question.platform.gpus_per_node * question.platform.single_hop_nodes
            found.append(
                EpPoint(
                    gpus,
                    int(ep),
                    best.pp,
                    best.tp,
                    float(peak[place]),
                    float(state[place]),
                    best.ep == 1 or best.ep * best.tp <= hop,
                )
            )
    return found
