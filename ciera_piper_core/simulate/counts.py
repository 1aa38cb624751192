"""Messages of uniform traffic on the links of a job: counted by units of the network, not flow by flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.simulate import LINK_KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.simulate import Algorithm
    from ciera_piper_core.simulate.fabric import Fabric

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UniformPhase:
    """One phase of equally long messages, for any length.

    Attributes:
        name: as of ``flows.Phase``.
        shares: bytes of a message over those that a rank sends in all.
        sent_share: of a message between nodes, what is sent where copies cross once.
        port_bytes_s: of a rank's port, which carries its messages inside the node, and those between
            nodes too if ``port_carries_network``.
        load: by kind of link (``LINK_KINDS``, ports left out), seconds for a byte of each message
            between nodes on the busiest link of that kind.
        messages: of a rank, inside its node and between nodes, once for each distinct pair.
        copied: bytes that a rank reads and writes to pack, over those that it sends in all.
        peers: that a rank hears from beyond its switch, at most.
        rails: a rank hears at most one rank of each other node.
        level: phases that come before, one after the other.
    """

    name: str
    shares: float
    sent_share: float
    port_bytes_s: float
    port_carries_network: bool
    load: tuple[float, ...]
    messages: tuple[tuple[int, int], ...]
    copied: float
    peers: int
    rails: bool
    level: int


@dataclass(frozen=True, eq=False)
class Counts:
    """Ranks by unit, node and place; the rest follows.

    Attributes:
        fabric: whose links are counted on.
        held: ranks of the node of each rank.
        by_node: ranks by node and unit, shape ``(nodes, units)``.
    """

    fabric: Fabric
    held: Floats
    by_node: Floats

    @classmethod
    def of(cls, fabric: Fabric) -> Counts:
        """Count the ranks of a fabric's job."""
        job, unit = fabric.job, fabric.routes.unit
        return cls(fabric, job.ranks_of_node[job.node].astype(np.float64), _tally(job.node, unit))

    def flat(self) -> tuple[UniformPhase, ...]:
        """Every rank to every other, at once."""
        fabric, ranks = self.fabric, self.fabric.job.ranks
        of_unit = self.by_node.sum(axis=0)
        pairs = np.outer(of_unit, of_unit) - self.by_node.T @ self.by_node
        # Beyond a rank's switch are those of neither its node nor its domain.
        node, domain = fabric.job.node, fabric.routes.domain
        near = self.held + np.bincount(domain)[domain] - _tally(node, domain)[node, domain]
        messages = tuple((int(held) - 1, ranks - int(held)) for held in np.unique(self.held))
        load = self._network(ranks - self.held, pairs)
        return (self._phase("direct", 1 / ranks, 1.0, load, messages, 0.0, int(ranks - near.min()), False, 0),)

    def hierarchical(self, algorithm: Algorithm, sent_share: float) -> tuple[UniformPhase, ...]:
        """The phases of ``two_phase`` or ``halo``, on nodes that hold equally many ranks."""
        job, fabric = self.fabric.job, self.fabric
        ranks, nodes = job.ranks, job.nodes
        places = ranks // nodes
        by_place = _tally(job.local, fabric.routes.unit)
        pairs = by_place.T @ by_place - np.diag(self.by_node.sum(axis=0))
        none = (0.0,) * len(LINK_KINDS)
        network = self._network(np.full(ranks, nodes - 1.0), pairs)
        # A rank hears the ranks of its place that are beyond its switch.
        heard = _tally(job.local, fabric.routes.domain)[job.local, fabric.routes.domain]
        peers = int((nodes - heard).max())
        away = (ranks - places) / ranks

        def inside(name: str, blocks: int, copied: float, level: int) -> UniformPhase:
            return self._phase(name, blocks / ranks, 1.0, none, ((places - 1, 0),), copied, 0, False, level)

        def between(copied: float, level: int) -> UniformPhase:
            messages = ((0, nodes - 1),)
            return self._phase("inter", places / ranks, sent_share, network, messages, copied, peers, True, level)

        if algorithm == "two_phase":
            return inside("intra", nodes, 2.0, 0), between(2.0, 1)
        first, second, third = {"halo_v0": (0, 1, 2), "halo_v1": (0, 0, 1), "halo_v2": (1, 0, 1)}[algorithm]
        return (
            inside("intra", 1, 0.0, first),
            between(2 * away, second),
            inside("redistribute", nodes - 1, 2 * away, third),
        )

    def _phase(
        self,
        name: str,
        shares: float,
        sent_share: float,
        load: tuple[float, ...],
        messages: tuple[tuple[int, int], ...],
        copied: float,
        peers: int,
        rails: bool,
        level: int,
    ) -> UniformPhase:
        """A phase on the ports of this fabric."""
        port, carries = float(self.fabric.bytes_s[0]), self.fabric.port_carries_network
        return UniformPhase(name, shares, sent_share, port, carries, load, messages, copied, peers, rails, level)

    def _network(self, peers: Floats, pairs: Floats) -> tuple[float, ...]:
        """Seconds a byte of message on the busiest link of each kind.

        Args:
            peers: on other nodes, that each rank talks to.
            pairs: of ranks on different nodes, by the units of sender and receiver.
        """
        fabric, kinds = self.fabric, list(LINK_KINDS)
        messages = np.bincount(fabric.lane, peers, fabric.lanes)
        nics = fabric.bytes_s[fabric.first_nic : fabric.first_nic + fabric.lanes]
        busiest = dict.fromkeys(kinds, 0.0)
        busiest["NIC"] = float((messages / nics).max())
        links = len(fabric.routes.kind)
        if links:
            carried = np.zeros(links + 1)
            for column in np.moveaxis(fabric.routes.table, -1, 0):
                # No link, -1, is counted behind the last.
                carried += np.bincount(np.where(column < 0, links, column).ravel(), pairs.ravel(), links + 1)
            seconds = carried[:links] / fabric.bytes_s[fabric.first_network :]
            for number, name in enumerate(kinds):
                of_kind = seconds[fabric.routes.kind == number]
                if len(of_kind):
                    busiest[name] = max(busiest[name], float(of_kind.max()))
        return tuple(busiest[name] for name in kinds)


def _tally(row: NDArray[np.int64], column: NDArray[np.int64]) -> Floats:
    """Ranks by two numbers of each, float64."""
    width = int(column.max()) + 1
    height = int(row.max()) + 1
    return np.bincount(row * width + column, minlength=height * width).reshape(height, width).astype(np.float64)
