"""The smallest number of GPUs on which a model fits: questions about memory alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.planner.candidates import candidates
from ciera_piper_core.planner.estimate import Estimator
from ciera_piper_core.planner.memory import static_bytes_per_parameter

if TYPE_CHECKING:
    from ciera_piper_core.planner.strategy import Question

LEAST_MEMORY = {"checkpointing": ("full",), "zero_stage": (2, 3), "alltoall": ("flat",), "schedule": ("1f1b",)}
"""The values that need the least memory, of the dimensions where that is known."""

STEPS_PER_OCTAVE = 8
"""Numbers of nodes that are tried between one power of two and the next, once there are more of them."""


def fits(question: Question) -> bool:
    """Whether any strategy fits, by memory alone: with the settings that need the least of it."""
    if least_state_bytes(question) > question.platform.usable_memory_bytes:
        return False
    if _any_fits(_narrowed(question, tuple(LEAST_MEMORY))):
        return True
    # 1F1B needs as many microbatches as stages; other schedules may run with fewer.
    return _any_fits(_narrowed(question, ("checkpointing", "zero_stage", "alltoall")))


def least_state_bytes(question: Question) -> float:
    """Bytes a GPU of weights, gradients and optimizer state if all of it were spread over all GPUs: a lower bound."""
    # Adafactor's moments are few; leaving them out keeps the bound.
    optimizer = "sgd" if question.optimizer == "adafactor" else question.optimizer
    each = static_bytes_per_parameter(optimizer, question.precision).total
    return float(model_parameters(question.architecture, mtp=question.mtp).total * each / question.gpus)


def smallest_gpus(question: Question, first: int, last: int) -> int | None:
    """The least number of GPUs, of ``gpu_counts``, on which something fits; None if nothing does."""
    for gpus in gpu_counts(question.platform.gpus_per_node, first, last):
        if fits(replace(question, gpus=gpus)):
            return gpus
    return None


def gpu_counts(gpus_per_node: int, first: int, last: int) -> list[int]:
    """Numbers of GPUs worth a try, from ``first`` to ``last``, both among them.

    Within a node every number; then whole nodes: all up to ``2 * STEPS_PER_OCTAVE``, and
    ``STEPS_PER_OCTAVE`` numbers of them, equally far apart, from each power of two to the next.
    """
    counts = {first, last, *range(1, gpus_per_node + 1)}
    nodes, step = 1, 1
    while nodes * gpus_per_node <= last:
        counts.add(nodes * gpus_per_node)
        nodes += step
        if nodes >= 2 * STEPS_PER_OCTAVE * step:
            step *= 2
    return sorted(count for count in counts if first <= count <= last)


def _any_fits(question: Question) -> bool:
    estimator = Estimator(question)
    found, _ = candidates(question, estimator.kinds, smallest_microbatches=True)
    return bool(len(found)) and bool(np.any(estimator.peaks(found) <= question.platform.memory_bytes))


def _narrowed(question: Question, names: tuple[str, ...]) -> Question:
    """The question with these dimensions at their least memory, as far as it allows these values."""
    narrowed = dict(question.only)
    for name in names:
        allowed = question.only.get(name)
        least = LEAST_MEMORY[name]
        if allowed is None:
            narrowed[name] = least
        elif both := tuple(value for value in allowed if value in least):
            narrowed[name] = both
    return replace(question, only=narrowed)
