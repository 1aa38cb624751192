"""Shards of weights that take turns between two states, so that every gather finds as many exponents changed.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.exponents.kernels import DEFAULT_BLOCK
from suites.weights import DEVIATION

if TYPE_CHECKING:
    from ciera_piper_core.exponents.layout import FloatLayout

CHUNK = 2**18
"""Values that are made at once, whole blocks of them: what making them takes is little beside large shards."""


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
        random = torch.Generator().manual_seed((self.seed * 1_000_003 + rank) * 1009 + layer)
        shard = torch.empty(self.values, dtype=self.layout.dtype)
        for start in range(0, self.values, CHUNK):
            part = shard[start : start + CHUNK]
            weights = (torch.randn(len(part), generator=random) * DEVIATION).to(part.dtype)
            up = torch.rand(len(part), generator=random) < 0.5
            changed = self._changed(start, len(part), random)
            if state:
                # A factor of two moves the exponent by one, and nothing else.
                weights = torch.where(changed, torch.where(up, weights * 2, weights / 2), weights)
            part.copy_(weights)
        return shard.view(self.layout.bits_dtype)

    def _changed(self, start: int, count: int, random: torch.Generator) -> torch.Tensor:
        """Which of so many values from ``start`` on change, bool."""
        unit = DEFAULT_BLOCK if self.clustered else 1
        first, units = start // unit, -(-count // unit)
        # So that all chunks together have as many as the whole shard should.
        wanted = round((first + units) * self.change_rate) - round(first * self.change_rate)
        changed = torch.zeros(units, dtype=torch.bool)
        changed[torch.randperm(units, generator=random)[:wanted]] = True
        return changed.repeat_interleave(unit)[:count]
