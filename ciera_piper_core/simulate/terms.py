"""Costs beyond bandwidth that a fluid does not have, each with a name, a value, and how it is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ciera_piper_core.platforms.platform import Congestion, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS: Mapping[str, str] = {
    "message_intra_s": "s",
    "message_inter_s": "s",
    "phase_start_s": "s",
    "nic_messages_s": "messages/s",
    "nic_sharing_loss": "ratio",
    "peers_that_halve": "ranks",
    "incast_most": "ratio",
    "rail_peers_that_halve": "ranks",
    "rail_incast_most": "ratio",
    "copy_bytes_s": "B/s",
    "overlap_share": "ratio",
}
"""Unit of each term, in the order of printing."""

MEANINGS: Mapping[str, str] = {
    "message_intra_s": "fixed cost of a message inside a node; those of a rank add up",
    "message_inter_s": "fixed cost of a message between nodes; those of a rank add up",
    "phase_start_s": "fixed cost of a phase, whatever it sends",
    "nic_messages_s": "messages that a NIC takes a second; a shorter one occupies it as long",
    "nic_sharing_loss": "rate that a NIC loses for each further GPU on it: rate / (1 + loss (GPUs - 1))",
    "peers_that_halve": "incast: ranks that send to one from beyond its switch and halve the rate, every rank to every",
    "incast_most": "largest factor of that incast",
    "rail_peers_that_halve": "incast where a rank hears one rank a node (two_phase, halo)",
    "rail_incast_most": "largest factor of that incast",
    "copy_bytes_s": "bytes that packing reads and writes a second on a GPU",
    "overlap_share": "what is hidden of the shorter of two phases that run side by side",
}
"""What each term is."""

SHARES = ("nic_sharing_loss", "overlap_share")
AT_LEAST_ONE = ("incast_most", "rail_incast_most")
NOT_COUNTED = Term("assumed", "not counted")


@dataclass(frozen=True)
class Terms:
    """Named costs; a fresh one has none, which leaves the pure fluid.

    Attributes:
        message_intra_s, ...: as ``MEANINGS`` says, in the ``UNITS``.
        known: by name, whether it was measured, specified or assumed, and the source; what is left
            out is ``assumed: not counted``.

    Raises:
        ValueError: a number out of range, or an unknown name.
    """

    message_intra_s: float = 0.0
    message_inter_s: float = 0.0
    phase_start_s: float = 0.0
    nic_messages_s: float = math.inf
    nic_sharing_loss: float = 0.0
    peers_that_halve: float = math.inf
    incast_most: float = 1.0
    rail_peers_that_halve: float = math.inf
    rail_incast_most: float = 1.0
    copy_bytes_s: float = math.inf
    overlap_share: float = 1.0
    known: Mapping[str, Term] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_known(self.known)
        for name, unit in UNITS.items():
            value = getattr(self, name)
            if name in AT_LEAST_ONE:
                fits, range_text = 1 <= value < math.inf, "at least 1 and finite"
            elif name in SHARES:
                fits, range_text = 0 <= value <= 1, "from 0 to 1"
            elif unit == "s":
                fits, range_text = 0 <= value < math.inf, "0 or more and finite"
            else:
                fits, range_text = value > 0, "above 0"
            if not fits:
                raise ValueError(f"the term {name} must be {range_text}, not {value!r}")

    def how(self, name: str) -> Term:
        """How a term is known."""
        return self.known.get(name, NOT_COUNTED)

    def with_value(self, name: str, value: float, how: Term) -> Terms:
        """The same terms but one, for example one that was fitted.

        Raises:
            ValueError: an unknown name, or a value out of range.
        """
        require_known([name])
        changed = replace(self, known={**self.known, name: how})
        return replace(changed, **{name: value})  # type: ignore[arg-type]  # every term is a float

    @property
    def incast(self) -> Congestion:
        """Of exchanges in which every rank hears every other."""
        return Congestion(self.peers_that_halve, self.incast_most)

    @property
    def rail_incast(self) -> Congestion:
        """Of exchanges in which a rank hears one rank a node."""
        return Congestion(self.rail_peers_that_halve, self.rail_incast_most)

    @property
    def counted(self) -> tuple[str, ...]:
        """Names of the terms that change a prediction."""
        free = Terms()
        pairs = {"peers_that_halve": "incast_most", "rail_peers_that_halve": "rail_incast_most"}

        def off(name: str) -> bool:
            return bool(getattr(self, name) == getattr(free, name))

        partner = {**pairs, **{most: peers for peers, most in pairs.items()}}
        return tuple(name for name in UNITS if not off(name) and not (name in partner and off(partner[name])))

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the counted terms that were measured."""
        return tuple(name for name in self.counted if self.how(name).status == "measured")

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the counted terms that were not measured, specified ones among them."""
        return tuple(name for name in self.counted if self.how(name).status != "measured")

    def describe(self) -> list[str]:
        """A line a term: name, value and unit, how it is known."""
        return [f"{name}: {getattr(self, name):.4g} {unit}: {self.how(name)}" for name, unit in UNITS.items()]


def require_known(names: Mapping[str, object] | list[str]) -> None:
    """Nothing if all are names of terms.

    Raises:
        ValueError: one is not; the message lists them.
    """
    if unknown := sorted(set(names) - set(UNITS)):
        raise ValueError(f"unknown term {unknown[0]!r}; known: {', '.join(UNITS)}")
