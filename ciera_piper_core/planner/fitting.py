"""The smallest number of GPUs on which a model fits: questions about memory alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
"""Numbers of nodes that are tried first between one power of two and the next, once there are more of them."""

MOST_TRIES = 64
"""Further numbers of nodes that are tried below the first that fits; each takes some 30 ms."""


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


@dataclass(frozen=True)
class Smallest:
    """The smallest number of GPUs on which something fits.

    Attributes:
        gpus: it.
        exact: all numbers below it, within a node, or of whole nodes beyond one, were tried or cannot
            hold the state; if not, a smaller one may do.
    """

    gpus: int
    exact: bool

    def __str__(self) -> str:
        return str(self.gpus) if self.exact else f"at most {self.gpus}"


def smallest_gpus(question: Question, first: int, last: int) -> Smallest | None:
    """The least number of GPUs from ``first`` to ``last`` on which something fits; None if nothing does.

    First by ``gpu_counts``, up to the first that fits; then those below it which that left out. More
    GPUs do not always fit where fewer do: their numbers have other divisors.
    """
    node = question.platform.gpus_per_node
    counts = gpu_counts(node, first, last)
    found = next((gpus for gpus in counts if fits(replace(question, gpus=gpus))), None)
    if found is None:
        return None
    tried = set(counts)
    # On fewer than these not even the state fits.
    least = least_state_bytes(question) * question.gpus / question.platform.usable_memory_bytes
    begin = max(-(-first // node), int(least) // node) * node
    left_out = [gpus for gpus in range(max(begin, node), found, node) if gpus not in tried]
    # Where there are too many, they are spread over all.
    step = max(1, -(-len(left_out) // MOST_TRIES))
    smaller = next((gpus for gpus in left_out[::step] if fits(replace(question, gpus=gpus))), found)
    return Smallest(smaller, step == 1)


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
