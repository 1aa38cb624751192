"""Measured curves of collective operations: one by one, and the message cost and link rate that they imply.

A curve holds for its ranks on its nodes. For other ranks, each operation's largest measured group
inside a node, and the largest over nodes, give its message cost and link rate; these go into the
same formulas that a specification's numbers go into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciera_piper_core.platforms.tables import SecondsCurve

LIBRARY_ALGORITHMS = ("library", "flat")
"""Names of what the communication library does by itself."""

MESSAGES = {"all_to_all": 1, "all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""By operation, messages over ``ranks - 1`` that a rank sends one after the other, and shares of the data likewise."""


@dataclass(frozen=True)
class Link:
    """Fixed seconds of a message, and bytes a second in one direction that are reached."""

    message_seconds: float
    bytes_s: float


@dataclass(frozen=True)
class CollectiveCurve:
    """One operation on one group of ranks, seconds against bytes (S of nccl-tests).

    Attributes:
        op: ``all_to_all``, ``all_gather``, ``reduce_scatter``, ``all_reduce`` or ``send_recv``.
        algorithm: ``library`` or ``flat`` for the library's own.
        ranks, nodes: of the group.
        seconds: the curve.
        source: for people: suite, dtype, scope, and how many of its points did not settle.
        emulated: the network was a lab's.
        figures, unsettled: its points, and those of them that had not settled.
    """

    op: str
    algorithm: str
    ranks: int
    nodes: int
    seconds: SecondsCurve
    source: str
    emulated: bool = False
    figures: int = 0
    unsettled: int = 0

    @property
    def rank_link(self) -> Link:
        """Message cost from the least time, and a rank's rate from the best; the formulas of rings and exchanges."""
        best_rate = float((self.seconds.sizes / self.seconds.seconds).max())
        least = float(self.seconds.seconds[0])
        if self.op == "send_recv":
            return Link(least, best_rate)
        messages = MESSAGES[self.op] * (self.ranks - 1)
        return Link(least / messages, best_rate * messages / self.ranks)


@dataclass(frozen=True)
class CollectiveCurves:
    """All curves of a profile.

    Attributes:
        curves: in order of preference: of two that fit a question equally, the first counts.
        nics_per_node: that the rate of a group over nodes is shared out to.
    """

    curves: tuple[CollectiveCurve, ...] = ()
    nics_per_node: int = 1

    def find(self, op: str, ranks: int, nodes: int, algorithm: str = "flat") -> CollectiveCurve | None:
        """The curve of exactly these ranks on so many nodes, or None."""
        wanted = LIBRARY_ALGORITHMS if algorithm in LIBRARY_ALGORITHMS else (algorithm,)
        fits = (c for c in self.curves if (c.op, c.ranks, c.nodes) == (op, ranks, nodes) and c.algorithm in wanted)
        return next(fits, None)

    def representative(self, op: str, *, crosses: bool) -> CollectiveCurve | None:
        """The library's curve of the largest group, inside a node or over nodes; None without one.

        A real network comes before an emulated one.
        """
        fits = [
            curve
            for curve in self.curves
            if curve.op == op and curve.algorithm in LIBRARY_ALGORITHMS and (curve.nodes > 1) == crosses
        ]
        # max keeps the first of equals, which is the preferred one.
        return max(fits, key=lambda curve: (not curve.emulated, curve.nodes, curve.ranks), default=None)

    def link(self, op: str, *, crosses: bool) -> Link | None:
        """The link that the operation's largest group implies; between nodes its rate is one NIC's."""
        curve = self.representative(op, crosses=crosses)
        if curve is None:
            return None
        link = curve.rank_link
        if not crosses:
            return link
        per_node = curve.ranks / curve.nodes
        if op == "all_to_all":
            # A rank's rate counts all that it sends; what stays on its node does not use the NIC.
            crossing = (curve.ranks - per_node) / (curve.ranks - 1)
            return Link(link.message_seconds, link.bytes_s * crossing * per_node / self.nics_per_node)
        # In a ring over all ranks, one rank of a node sends to the next node.
        return Link(link.message_seconds, link.bytes_s / self.nics_per_node)
