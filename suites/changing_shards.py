"""Shards of weights that take turns between two states, so that every gather finds as many exponents changed.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.exponents.kernels import DEFAULT_BLOCK
from suites.weights import make_weights

if TYPE_CHECKING:
    from ciera_piper_core.exponents.layout import FloatLayout


@dataclass(frozen=True)
class ChangingShards:
    """Gaussian weights; in the other state, some exponents are one higher or lower, as after a training step.

    Attributes:
        values: of a shard.
        layout: of the values.
        change_rate: share of exponents that differ between the states.
        clustered: whole blocks of the default size change, and all others stay; else anywhere.
        seed: of the run.
    """

    values: int
    layout: FloatLayout
    change_rate: float
    clustered: bool
    seed: int

    def of(self, rank: int, layer: int, state: int) -> torch.Tensor:
        """A rank's values as integers, in state 0 or 1: the same wherever it is asked for."""
        seed = (self.seed * 1_000_003 + rank) * 1009 + layer
        weights = make_weights("gaussian", self.values, self.layout.dtype, seed, {})
        if state:
            random = torch.Generator().manual_seed(seed + 1)
            up = torch.rand(self.values, generator=random) < 0.5
            # A factor of two moves the exponent by one, and nothing else.
            moved = torch.where(up, weights * 2, weights / 2)
            weights = torch.where(self._changed(random), moved, weights)
        return weights.view(self.layout.bits_dtype)

    def _changed(self, random: torch.Generator) -> torch.Tensor:
        """Which values change, bool."""
        unit = DEFAULT_BLOCK if self.clustered else 1
        units = -(-self.values // unit)
        changed = torch.zeros(units, dtype=torch.bool)
        changed[torch.randperm(units, generator=random)[: round(units * self.change_rate)]] = True
        return changed.repeat_interleave(unit)[: self.values]
