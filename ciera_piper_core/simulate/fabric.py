"""Links of a job on a machine, and which of them each flow takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.simulate import LINK_KINDS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.simulate.job import Job
    from ciera_piper_core.simulate.topology import Routes

    Ints = NDArray[np.int64]
    Ranks = NDArray[np.int32]
    Paths = NDArray[np.int32]

INTRA, NIC = LINK_KINDS.index("intra-node"), LINK_KINDS.index("NIC")
NO_LINK = -1


@dataclass(frozen=True, eq=False)
class Fabric:
    """Links, numbered: ports of ranks out and in, NICs out and in, then those of the network.

    A flow inside a node leaves by its rank's port and enters by the other's. One between nodes takes
    the sender's NIC, the network's links, and the receiver's NIC; the ports as well where they carry
    traffic of the network.

    Attributes:
        job: whose ranks talk.
        lane: of each rank, the number of its NIC among all, from 0 without a gap.
        routes: of the network.
        kind: of each link, an index of ``LINK_KINDS``.
        bytes_s: of each link.
        port_carries_network: a rank's port carries what it exchanges with other nodes, too.
    """

    job: Job
    lane: Ints
    routes: Routes
    kind: Ints
    bytes_s: NDArray[np.float64]
    port_carries_network: bool

    @classmethod
    def build(
        cls,
        job: Job,
        lane: Ints,
        routes: Routes,
        *,
        port_bytes_s: float,
        nic_bytes_s: ArrayLike,
        port_carries_network: bool = False,
    ) -> Fabric:
        """All links of a job.

        Args:
            port_bytes_s: of a rank's port, each direction.
            nic_bytes_s: of each NIC, each direction; one number, or shape ``(lanes,)``.
        """
        lanes = int(lane.max()) + 1
        nics = np.broadcast_to(np.asarray(nic_bytes_s, dtype=np.float64), lanes)
        ports = np.full(2 * job.ranks, INTRA), np.full(2 * job.ranks, port_bytes_s, dtype=np.float64)
        kind = np.concatenate([ports[0], np.full(2 * lanes, NIC), routes.kind])
        return cls(
            job, lane, routes, kind, np.concatenate([ports[1], nics, nics, routes.bytes_s]), port_carries_network
        )

    @property
    def lanes(self) -> int:
        return int(self.lane.max()) + 1

    @property
    def first_nic(self) -> int:
        """Number of the first NIC's link out; those in follow ``lanes`` later."""
        return 2 * self.job.ranks

    @property
    def first_network(self) -> int:
        """Number of the network's first link."""
        return self.first_nic + 2 * self.lanes

    def crosses(self, src: Ranks, dst: Ranks) -> NDArray[np.bool_]:
        """Whether each flow leaves its node."""
        return np.asarray(self.job.node[src] != self.job.node[dst])

    def paths(self, src: Ranks, dst: Ranks) -> Paths:
        """Links of flows from ``src`` to ``dst`` (no rank to itself): shape ``(flows, width)``, -1 for none."""
        table = self.routes.table
        inter = self.crosses(src, dst)
        ports = 2 if self.port_carries_network else 0
        paths = np.full((len(src), ports + 2 + table.shape[-1]), NO_LINK, dtype=np.int32)
        ranks = self.job.ranks
        uses_port = ~inter if not ports else np.ones_like(inter)
        nic = np.stack([self.first_nic + self.lane[src], self.first_nic + self.lanes + self.lane[dst]], axis=1)
        port = np.stack([src, ranks + dst.astype(np.int64)], axis=1)
        if ports:
            paths[:, :2] = port
            paths[inter, 2:4] = nic[inter]
        else:
            paths[:, :2] = np.where(uses_port[:, np.newaxis], port, nic)
        if table.shape[-1]:
            network = table[self.routes.unit[src], self.routes.unit[dst]]
            network = np.where(network == NO_LINK, NO_LINK, network + self.first_network)
            network[~inter] = NO_LINK
            paths[:, ports + 2 :] = network
        return paths

    def ends(self, src: Ranks, dst: Ranks) -> tuple[Ranks, Ranks]:
        """Where each flow enters the links and where it leaves them; flows of the same ends take the same links."""
        if self.port_carries_network:
            return src, dst
        inter = self.crosses(src, dst)
        lane = self.lane.astype(np.int32)
        # Ports are numbered behind the NICs.
        return np.where(inter, lane[src], src + self.lanes), np.where(inter, lane[dst], dst + self.lanes)

    def without_idle_links(self) -> Fabric:
        """The same without links of the network that can never be the narrowest of a flow's.

        Those are links at least as wide as all NICs together that send through them, or receive.
        """
        table, first = self.routes.table, self.first_network
        links, units = len(self.routes.kind), table.shape[0]
        if not links:
            return self
        unit_of_lane = np.zeros(self.lanes, dtype=np.int64)
        unit_of_lane[self.lane] = self.routes.unit
        injected = np.bincount(unit_of_lane, self.bytes_s[self.first_nic : self.first_nic + self.lanes], units)
        feeds = np.zeros((2, links + 1, units), dtype=bool)
        sender, receiver = np.indices((units, units))
        for column in np.moveaxis(table, -1, 0):
            feeds[0, column, sender] = True
            feeds[1, column, receiver] = True
        offered = (feeds[:, :links] @ injected).min(axis=0)
        binds = self.bytes_s[first:] < offered * (1 - 1e-9)
        kept = np.where(np.append(binds, False)[table], table, NO_LINK)
        used = (kept != NO_LINK).any(axis=(0, 1))
        return replace(self, routes=replace(self.routes, table=kept[..., used]))
