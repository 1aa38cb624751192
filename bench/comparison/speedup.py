"""How much faster one side is than another, with an interval, from turns that lay next to each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.stats.pairs import CONFIDENCE, Pair, Samples, compare
from bench.stats.shifts import one_sample_shift

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_TURNS = 6
"""Of fewer pairs, signed ranks give no bounded interval at 95 %."""


@dataclass(frozen=True)
class Speedup:
    """How much faster a side is than the reference.

    Attributes:
        value: duration of the reference over that of the side. low, high: its 95 % interval; zero and
            infinite where there are too few turns.
        ratios: the same of the two medians of each turn, in order.
    """

    value: float
    low: float
    high: float
    ratios: tuple[float, ...]


def speedup_of(reference: Sequence[Sequence[float]], side: Sequence[Sequence[float]], by_turns: bool) -> Speedup | None:
    """The speedup of a side over the reference; None if it cannot be told.

    By turns, it is the Hodges-Lehmann estimate of the ratios of turns that lay next to each other, and
    the interval that of the signed ranks: what the machine does slowly is in both sides of a ratio. A
    gate asks whether there is a difference at all, and so pairs only where that cannot favour one; here
    the question is how large it is. Few turns, or sides one after the other, are compared as the gate does.

    Args:
        reference, side: durations of each turn's iterations, s; as many turns of both.
        by_turns: turn i of the one was next to turn i of the other.
    """
    medians = [np.array([np.median(turn) for turn in turns]) for turns in (reference, side)]
    if not all(found.size and (found > 0).all() for found in medians):
        return None
    logarithms = np.log(medians[0]) - np.log(medians[1])
    ratios = tuple(float(ratio) for ratio in np.exp(logarithms))
    if by_turns and len(logarithms) >= LEAST_TURNS:
        shift, low, high = (float(found[0]) for found in one_sample_shift(logarithms[np.newaxis], CONFIDENCE))
        return Speedup(math.exp(shift), math.exp(low), math.exp(high), ratios)
    pair = Pair("", Samples.from_blocks(reference), Samples.from_blocks(side), interleaved=by_turns)
    found = compare([pair])[0]
    if found.way is None:
        return None
    return Speedup(math.exp(-found.shift), math.exp(-found.high), math.exp(-found.low), ratios)
