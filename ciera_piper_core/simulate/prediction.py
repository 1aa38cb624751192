"""What an engine answers: seconds of an exchange, where they go, and which terms stand behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ciera_piper_core.simulate import BOTTLENECKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.simulate import Algorithm, Bottleneck

Engine = Literal["closed form", "max-min"]


@dataclass(frozen=True)
class PhaseTime:
    """One phase of an exchange.

    Attributes:
        name: as of ``flows.Phase``.
        begin_s, end_s: of its first and last rank, from the begin of the exchange.
        bottleneck: what most of its time goes to.
    """

    name: str
    begin_s: float
    end_s: float
    bottleneck: Bottleneck


@dataclass(frozen=True)
class Prediction:
    """One exchange, predicted.

    Attributes:
        algorithm: that was asked for. fallback: why the flat one ran instead; empty if it did not.
        ranks, nodes: of the job.
        bytes_per_rank: that a rank sends, its own rows included; the largest of all ranks.
        seconds: until the last rank is done.
        parts: seconds by what they go to, which add up to ``seconds``; what is hidden is not counted.
        phases: of the algorithm.
        engine: that made it.
        measured, assumed: names of the terms in it that were measured on the machine, and of all others.
    """

    algorithm: Algorithm
    fallback: str
    ranks: int
    nodes: int
    bytes_per_rank: float
    seconds: float
    parts: Mapping[Bottleneck, float]
    phases: tuple[PhaseTime, ...]
    engine: Engine
    measured: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> Bottleneck:
        """What most of the time goes to; of equals the first of ``BOTTLENECKS``."""
        return max(BOTTLENECKS, key=lambda name: self.parts.get(name, 0.0))

    @property
    def algbw_bytes_s(self) -> float:
        """Bytes that a rank sends over the seconds; 0 where nothing takes no time."""
        return self.bytes_per_rank / self.seconds if self.seconds else 0.0
