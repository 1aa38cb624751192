"""A machine as the simulator sees it: equal nodes, a network between them, and named terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.simulate.fabric import Fabric
from ciera_piper_core.simulate.job import Job
from ciera_piper_core.simulate.terms import Terms
from ciera_piper_core.simulate.topology import Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ciera_piper_core.platforms.platform import Term
    from ciera_piper_core.simulate.topology import Network

    Ints = NDArray[np.int64]

BANDWIDTHS = ("intra_node", "inter_node", "topology")
"""What a machine says how it knows, beside its terms."""


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        gpus: of it.
        port_bytes_s: what one GPU sends to the others of its node, and receives from them, at most.
        nics: of it. nic_bytes_s: of each, one direction, as far as it is reached.
        nic_of_gpu: number of the NIC that each GPU uses; None for equal shares in order.
        port_carries_network: what a GPU exchanges with other nodes passes its port, too.

    Raises:
        ValueError: a number out of range.
    """

    gpus: int
    port_bytes_s: float
    nics: int
    nic_bytes_s: float
    nic_of_gpu: tuple[int, ...] | None = None
    port_carries_network: bool = False

    def __post_init__(self) -> None:
        for name in ("gpus", "port_bytes_s", "nics", "nic_bytes_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"node: {name} must be above 0 and finite, not {value!r}")
        if self.nic_of_gpu is not None and (
            not isinstance(self.nic_of_gpu, tuple)
            or len(self.nic_of_gpu) != self.gpus
            or not all(isinstance(nic, int) and 0 <= nic < self.nics for nic in self.nic_of_gpu)
        ):
            raise ValueError(f"node: nic_of_gpu must give {self.gpus} NIC numbers from 0 to {self.nics - 1}")

    def nic(self, local: Ints) -> Ints:
        """NIC within the node of the GPUs number ``local``."""
        if self.nic_of_gpu is not None:
            return np.asarray(self.nic_of_gpu, dtype=np.int64)[local]
        return np.asarray(local * self.nics // self.gpus)


@dataclass(frozen=True)
class Machine:
    """Equal nodes on a network.

    Attributes:
        name: of it.
        node: each node.
        network: between them.
        terms: costs beyond bandwidth.
        max_gpus: that it has.
        known: by name of ``BANDWIDTHS``, how these are known.

    Raises:
        ValueError: no GPU, or an unknown name in ``known``.
    """

    name: str
    node: Node
    network: Network
    terms: Terms = field(default_factory=Terms)
    max_gpus: int = 1 << 30
    known: Mapping[str, Term] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_gpus < 1:
            raise ValueError(f"machine {self.name!r}: max_gpus must be at least 1")
        if unknown := sorted(set(self.known) - set(BANDWIDTHS)):
            raise ValueError(f"machine {self.name!r}: unknown {unknown[0]!r}; known: {', '.join(BANDWIDTHS)}")

    @property
    def fluid(self) -> Machine:
        """The same with all terms off: bandwidth alone."""
        return replace(self, terms=Terms())

    def job(self, ranks: int, ranks_per_node: int | None = None) -> Job:
        """Ranks on as few nodes as possible.

        Args:
            ranks_per_node: as many as the node has GPUs if None.

        Raises:
            ValueError: more than the machine has; the message says what it has.
        """
        per_node = min(ranks, self.node.gpus) if ranks_per_node is None else ranks_per_node
        if not 1 <= per_node <= self.node.gpus:
            raise ValueError(f"machine {self.name!r} has 1 to {self.node.gpus} GPUs a node, not {per_node}")
        if not 1 <= ranks <= self.max_gpus or math.ceil(ranks / per_node) > self.network.max_nodes:
            most = min(self.max_gpus, self.network.max_nodes * self.node.gpus)
            raise ValueError(
                f"machine {self.name!r} has {most:.0f} GPUs on {self.network.name}, no place for {ranks} ranks"
                f" with {per_node} a node"
            )
        return Job.even(ranks, per_node)

    def fabric(self, job: Job) -> Fabric:
        """The links of a job, the NICs with what is left of their rate when GPUs share them.

        Raises:
            ValueError: a node holds more ranks than GPUs, or there are more nodes than the network connects.
        """
        if int(job.local.max()) >= self.node.gpus and job.nic_of_rank is None:
            raise ValueError(f"machine {self.name!r} has {self.node.gpus} GPUs a node, not {int(job.local.max()) + 1}")
        if job.nodes > self.network.max_nodes:
            raise ValueError(f"{job.nodes} nodes, but the network of {self.name!r} has {self.network.max_nodes:.0f}")
        nic = self.node.nic(job.local) if job.nic_of_rank is None else job.nic_of_rank
        if int(nic.max()) >= self.node.nics or int(nic.min()) < 0:
            raise ValueError(f"machine {self.name!r} has NICs 0 to {self.node.nics - 1}, not {nic.max()}")
        lane = np.unique(job.node * self.node.nics + nic, return_inverse=True)[1]
        routes = self.network.routes(job.node, nic, Entry(self.node.nics, self.node.nic_bytes_s))
        sharing = np.bincount(lane)
        return Fabric.build(
            job,
            lane,
            routes,
            port_bytes_s=self.node.port_bytes_s,
            nic_bytes_s=self.node.nic_bytes_s / (1 + self.terms.nic_sharing_loss * (sharing - 1)),
            port_carries_network=self.node.port_carries_network,
        )

    def describe(self) -> list[str]:
        """Lines for reports: the network, how bandwidths are known, and each term."""
        lines = [f"network: {self.network.name}"]
        lines += [f"{name}: {self.known[name]}" for name in BANDWIDTHS if name in self.known]
        return lines + self.terms.describe()
