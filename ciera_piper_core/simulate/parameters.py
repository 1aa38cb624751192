"""The numbers of a machine that measured exchanges can tell, each as one that times are proportional to.

A rate enters as seconds a byte, the peers that halve a rate as their inverse, a share that is hidden
as the share that is not: then a time is a sum of products of the numbers, near enough linear for
``calibrate``, and 0 is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ciera_piper_core.platforms.platform import Term
    from ciera_piper_core.simulate.machine import Machine

Where = Literal["node", "terms"]

SLOWEST, FASTEST = 1e3, 1e18
"""Bytes a second between which a fitted rate must be."""


@dataclass(frozen=True)
class Parameter:
    """One number.

    Attributes:
        name: of the attribute of ``machine.Node`` or ``terms.Terms``. where: of which.
        to_number, to_value: between the attribute's value and the number.
        step: of the number, small beside any that matters; for derivatives.
        low, high: between which the number is.
        cost: a cost of its own, which is off where it cannot be told from others; the rest is left as it was.
        known: the name in ``Machine.known``; empty for a term.
        nothing: what it means where its best value is 0.
    """

    name: str
    where: Where
    to_number: Callable[[float], float]
    to_value: Callable[[float], float]
    step: float
    low: float = 0.0
    high: float = math.inf
    cost: bool = False
    known: str = ""
    nothing: str = "which show none"

    def of(self, machine: Machine) -> float:
        """The number as the machine has it."""
        return self.to_number(getattr(machine.node if self.where == "node" else machine.terms, self.name))


def _inverse(value: float) -> float:
    return 1 / value if value else math.inf


def _same(value: float) -> float:
    return value


def _rest(value: float) -> float:
    return 1 - value


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("nic_bytes_s", "node", _inverse, _inverse, 1e-13, 1 / FASTEST, 1 / SLOWEST, known="inter_node"),
    Parameter("port_bytes_s", "node", _inverse, _inverse, 1e-13, 1 / FASTEST, 1 / SLOWEST, known="intra_node"),
    Parameter("message_inter_s", "terms", _same, _same, 1e-9, cost=True),
    Parameter("message_intra_s", "terms", _same, _same, 1e-9, cost=True),
    Parameter("copy_bytes_s", "terms", _inverse, _inverse, 1e-13, cost=True),
    Parameter("phase_start_s", "terms", _same, _same, 1e-9, cost=True),
    Parameter("overlap_share", "terms", _rest, _rest, 1e-5, 0.0, 1.0, nothing="which show all of it hidden"),
    Parameter("peers_that_halve", "terms", _inverse, _inverse, 1e-7),
    Parameter("rail_peers_that_halve", "terms", _inverse, _inverse, 1e-7),
    Parameter("nic_sharing_loss", "terms", _same, _same, 1e-5, 0.0, 1.0),
)
"""In order: of two that the cells cannot tell apart, the first is fitted."""

CAPS: Mapping[str, str] = {"peers_that_halve": "incast_most", "rail_peers_that_halve": "rail_incast_most"}
"""By incast, the term that is its largest factor."""

UNCAPPED = 1e6


def uncapped(machine: Machine) -> Machine:
    """The machine with room for an incast that it does not count yet."""
    off = {cap: UNCAPPED for name, cap in CAPS.items() if getattr(machine.terms, cap) == 1}
    free = {name: math.inf for name, cap in CAPS.items() if cap in off}
    return replace(machine, terms=replace(machine.terms, **off, **free))  # type: ignore[arg-type]  # floats, all of them


def with_numbers(machine: Machine, numbers: Mapping[str, float]) -> Machine:
    """The machine with other numbers, by name; how they are known is left."""
    node: dict[str, float] = {}
    terms: dict[str, float] = {}
    for each in PARAMETERS:
        if each.name in numbers:
            (node if each.where == "node" else terms)[each.name] = each.to_value(numbers[each.name])
    return replace(
        machine,
        node=replace(machine.node, **node) if node else machine.node,  # type: ignore[arg-type]  # floats, all of them
        terms=replace(machine.terms, **terms) if terms else machine.terms,  # type: ignore[arg-type]
    )


def with_sources(machine: Machine, sources: Mapping[str, Term]) -> Machine:
    """The machine with what is known of some of its numbers, by the names of parameters and terms."""
    known = {each.name: each.known for each in PARAMETERS if each.known}
    rates = {known[name]: how for name, how in sources.items() if name in known}
    terms = {name: how for name, how in sources.items() if name not in known}
    return replace(
        machine,
        known={**machine.known, **rates},
        terms=replace(machine.terms, known={**machine.terms.known, **terms}),
    )
