"""Noise of the proofs of pairs: samples of many cases whose truth is known, in the ways that runs are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Design = Literal["interleaved", "rounds", "runs"]
KINDS = ("plain", "drift", "autocorrelated", "bimodal")
MIXED_SHARES = (0.4, 0.2, 0.2, 0.2)
ROUNDS = 5
AUTOCORRELATION = 0.6
DRIFT = 2.0
"""End to end, in units of the noise's coefficient of variation, beside the noise."""
MODE_GAP = 2.5
"""Between two modes, in the same units, beside the noise."""
HIGH_MODE_SHARE = 0.3
MODE_STAYS = 0.8
PROCESS_SPREAD = 0.25
"""Standard deviation between processes, in the same units; none where samples are taken by turns."""


@dataclass(frozen=True)
class Source:
    """Where the samples of the cases come from.

    Attributes:
        design: ``interleaved`` takes samples A B B A by turns; ``rounds`` takes ``ROUNDS`` rounds a side, each
            by other processes; ``runs`` takes all samples of a side in one process.
        kinds: of each case's noise, indices into ``KINDS``, shape ``(cases,)``.
        cv: standard deviation of the logarithms of the plain noise.
        samples: a side.
        processes_differ: whether each process has a speed of its own.
    """

    design: Design
    kinds: NDArray[np.intp]
    cv: float
    samples: int
    processes_differ: bool

    def __post_init__(self) -> None:
        if self.design == "rounds" and self.samples % ROUNDS:
            raise UsageError(f"samples of {ROUNDS} rounds are a multiple of {ROUNDS}, not {self.samples}")

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the independent blocks of a side."""
        if self.design == "interleaved":
            return (1,) * self.samples
        return (self.samples // ROUNDS,) * ROUNDS if self.design == "rounds" else (self.samples,)

    def measure(self, random: np.random.Generator, cases: Sequence[int] | NDArray[np.intp]) -> tuple[Array, Array]:
        """Baseline and candidate of these cases, nothing changed between them, each ``(len(cases), samples)``."""
        kinds = self.kinds[np.asarray(cases, dtype=np.intp)]
        if self.design == "interleaved":
            series = self._series(random, kinds, 4 * -(-self.samples // 2), 1)
            place = np.arange(series.shape[1]) % 4
            first, second = series[:, (place == 0) | (place == 3)], series[:, (place == 1) | (place == 2)]
            return np.exp(first[:, : self.samples]), np.exp(second[:, : self.samples])
        blocks = len(self.blocks)
        one, other = (self._series(random, kinds, self.samples // blocks, blocks) for _ in range(2))
        return np.exp(one), np.exp(other)

    def _series(self, random: np.random.Generator, kinds: NDArray[np.intp], length: int, blocks: int) -> Array:
        """Logarithms of samples in order, shape ``(len(kinds), length * blocks)``."""
        cases, n = len(kinds), length * blocks
        noise = random.normal(size=(cases, blocks, length))
        correlated = kinds == KINDS.index("autocorrelated")
        rest = np.sqrt(1 - AUTOCORRELATION**2)
        for t in range(1, length):
            before = noise[correlated, :, t - 1]
            noise[correlated, :, t] = AUTOCORRELATION * before + rest * noise[correlated, :, t]
        if self.processes_differ:
            noise += PROCESS_SPREAD * random.normal(size=(cases, blocks, 1))
        series = noise.reshape(cases, n)
        drifting = np.flatnonzero(kinds == KINDS.index("drift"))
        signs = random.choice((-1.0, 1.0), size=(len(drifting), 1))
        series[drifting] += signs * np.linspace(-DRIFT / 2, DRIFT / 2, n)
        bimodal = np.flatnonzero(kinds == KINDS.index("bimodal"))
        series[bimodal] += MODE_GAP * self._modes(random, len(bimodal), length, blocks)
        return np.asarray(self.cv * series)

    def _modes(self, random: np.random.Generator, cases: int, length: int, blocks: int) -> Array:
        """0 or 1 for each sample. A process of a round stays in its mode, other modes last some samples."""
        high = random.random((cases, blocks, length)) < HIGH_MODE_SHARE
        stays = random.random((cases, blocks, length)) < (1.0 if blocks > 1 else MODE_STAYS)
        for t in range(1, length):
            high[:, :, t] = np.where(stays[:, :, t], high[:, :, t - 1], high[:, :, t])
        return high.reshape(cases, length * blocks).astype(np.float64)


def mixed_kinds(cases: int) -> NDArray[np.intp]:
    """Kinds of so many cases in the shares of ``MIXED_SHARES``, the rarer ones last."""
    bounds = np.rint(np.cumsum(MIXED_SHARES) * cases)
    return np.searchsorted(bounds, np.arange(cases), side="right").astype(np.intp)


def plain_kinds(cases: int) -> NDArray[np.intp]:
    """Every case with independent lognormal noise."""
    return np.zeros(cases, dtype=np.intp)
