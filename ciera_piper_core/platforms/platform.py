"""A machine as the planner sees it: devices, memory, links, rates, and how each of these is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from ciera_piper_core.platforms import shapes
from ciera_piper_core.platforms.collective_curves import CollectiveCurves, Link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.models.architecture import Attention
    from ciera_piper_core.platforms.roofline import Passes

    Array = NDArray[np.float64]

Status = Literal["measured", "specified", "assumed"]

DTYPES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
"""Short names of dtypes."""

DEFAULT_DTYPE = "bfloat16"

ELEMENT_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Of the dtypes that a plan computes in."""

TERMS = (
    "peak",
    "memory_bandwidth",
    "memory",
    "overhead",
    "matmul",
    "experts",
    "experts_backward",
    "attention",
    "attention_backward",
    "intra_node",
    "inter_node",
    "messages",
    "congestion",
    "topology",
)
"""What a platform says how it knows, in the order of printing."""


def dtype_name(text: str) -> str:
    """The dtype that a plan computes in, from its name or its short name (``bf16``).

    Raises:
        ValueError: another one.
    """
    name = DTYPES.get(text, text)
    if name not in ELEMENT_BYTES:
        raise ValueError(f"a plan computes in {', '.join(ELEMENT_BYTES)}, not {text!r}")
    return name


@dataclass(frozen=True)
class Term:
    """How a quantity is known.

    Attributes:
        status: ``measured`` on this machine, ``specified`` by whoever built it, or ``assumed``.
        text: the value in words, its source, and what was done with it.
        figures: measured values behind it; 0 where they are not counted.
        unsettled: how many of them had not settled when their measurement ended.
    """

    status: Status
    text: str
    figures: int = 0
    unsettled: int = 0

    def __str__(self) -> str:
        if not self.unsettled:
            return f"{self.status}: {self.text}"
        return f"{self.status}, not settled ({self.unsettled} of {self.figures}): {self.text}"


@dataclass(frozen=True)
class Messages:
    """Fixed seconds of a message inside a node (``intra``) and between nodes (``inter``)."""

    intra: float
    inter: float


@dataclass(frozen=True)
class Congestion:
    """How a flat all-to-all loses network rate to many peers at once (incast).

    The time between nodes is longer by ``min(1 + peers / peers_that_halve, most)``, where the peers
    are the ranks beyond the single-hop nodes. Piper's measurements (its Fig 8) need such a term: a
    fluid model has none, and makes the hierarchical algorithm look slower than the flat one.

    Attributes:
        peers_that_halve: so many peers halve the rate. most: the largest factor; 1 for no effect.
    """

    peers_that_halve: float = math.inf
    most: float = 1.0

    def factor(self, peers: ArrayLike) -> Array:
        """How many times longer the traffic between nodes takes."""
        beyond = np.maximum(np.asarray(peers, dtype=np.float64), 0.0)
        return np.asarray(np.minimum(1 + beyond / self.peers_that_halve, self.most))


class Rates(Protocol):
    """Times of the work that a device does; :class:`Roofline` declares them, ``MeasuredRates`` looks them up."""

    def memory_seconds(self, bytes_moved: ArrayLike) -> Array: ...

    def products(self, rows: ArrayLike, columns: ArrayLike, depth: ArrayLike, groups: ArrayLike = 1) -> Passes: ...

    def attention(
        self, attention: Attention, hidden: int, sequence: int, tokens: ArrayLike, tensor_parallel: ArrayLike = 1
    ) -> dict[str, Passes]: ...

    def experts(
        self, tokens_per_expert: ArrayLike, experts: ArrayLike, hidden: int, ffn: ArrayLike, matrices: int
    ) -> Passes: ...

    def activation(self, rows: ArrayLike, ffn: ArrayLike, matrices: int) -> Passes: ...

    def attention_note(self, attention: Attention, hidden: int, sequence: int, tensor_parallel: int = 1) -> str: ...

    def experts_note(self, tokens_per_expert: float, hidden: int, ffn: int, matrices: int) -> str: ...


@dataclass(frozen=True)
class Platform:
    """A machine of equal nodes.

    Bytes are decimal counts of bytes, rates are bytes or operations a second. A link's rate is that
    of one direction; what collectives reach of it is the share beside it.

    Attributes:
        name: of the machine. device: of one accelerator, or what stands for it.
        gpus_per_node, max_gpus: devices of a node, and of the machine.
        memory_bytes: of a device. overhead_bytes: of it, what the framework and libraries take.
        memory_bandwidth_bytes_s: of a device.
        peak_flops: dense operations a second by dtype (never with sparsity). peak_source: where it is from.
        intra_node_bytes_s, intra_node_share: a device's rate to the others of its node, and the share reached.
        nics_per_node: that a node's devices share. nic_bytes_s, nic_share: of each. 0 bytes a second:
            nothing is known of the network between nodes.
        topology: ``dragonfly``, ``fat-tree``, ``single node``, ...
        single_hop_nodes: nodes on one switch (N_h of the paper).
        group_nodes: nodes that reach each other at full rate; beyond, rates fall by ``taper``.
        taper: at least 1.
        message_seconds: fixed cost of a message.
        congestion: of the flat all-to-all.
        rates: of the device, in ``dtype``.
        dtype: that ``rates`` are for.
        collectives: measured curves; empty for a built-in specification.
        terms: by name of ``TERMS``, how each is known.

    Raises:
        ValueError: a number that is out of range, an unknown term, or one that is missing.
    """

    name: str
    device: str
    gpus_per_node: int
    max_gpus: int
    memory_bytes: int
    overhead_bytes: int
    memory_bandwidth_bytes_s: float
    peak_flops: Mapping[str, float]
    peak_source: str
    intra_node_bytes_s: float
    nics_per_node: int
    nic_bytes_s: float
    topology: str
    single_hop_nodes: int
    group_nodes: int
    message_seconds: Messages
    rates: Rates
    terms: Mapping[str, Term]
    intra_node_share: float = 1.0
    nic_share: float = 1.0
    taper: float = 1.0
    congestion: Congestion = Congestion()
    dtype: str = DEFAULT_DTYPE
    collectives: CollectiveCurves = field(default_factory=CollectiveCurves)

    def __post_init__(self) -> None:
        counts = ("gpus_per_node", "max_gpus", "memory_bytes", "nics_per_node", "single_hop_nodes", "group_nodes")
        for name in (*counts, "memory_bandwidth_bytes_s", "intra_node_bytes_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"platform {self.name!r}: {name} must be above 0 and finite, not {value!r}")
        for name in ("intra_node_share", "nic_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"platform {self.name!r}: {name} must be above 0 and at most 1")
        if not 0 <= self.overhead_bytes < self.memory_bytes:
            raise ValueError(f"platform {self.name!r}: overhead_bytes must be less than memory_bytes")
        if not 0 <= self.nic_bytes_s < math.inf or self.taper < 1:
            raise ValueError(f"platform {self.name!r}: nic_bytes_s must not be negative, taper not below 1")
        if self.dtype not in ELEMENT_BYTES or self.dtype not in self.peak_flops or min(self.peak_flops.values()) <= 0:
            raise ValueError(f"platform {self.name!r}: needs a peak for {self.dtype}, and no peak of 0")
        if set(self.terms) != set(TERMS):
            wrong = sorted(set(self.terms) ^ set(TERMS))
            raise ValueError(f"platform {self.name!r}: terms must say how each quantity is known; wrong: {wrong}")

    @property
    def measured(self) -> frozenset[str]:
        """Names of the terms that were measured on this machine."""
        return frozenset(name for name, term in self.terms.items() if term.status == "measured")

    @property
    def settling(self) -> str:
        """How many of the measured figures did not settle, in a line for people; empty if all did."""
        terms = self.terms.values()
        figures, unsettled = sum(term.figures for term in terms), sum(term.unsettled for term in terms)
        return f"{unsettled} of {figures} measured figures did not settle" if unsettled else ""

    @property
    def usable_memory_bytes(self) -> int:
        """A device's memory without what the framework takes."""
        return self.memory_bytes - self.overhead_bytes

    @property
    def gpus_per_nic(self) -> float:
        """Devices that share a NIC when all of a node send at once."""
        return self.gpus_per_node / self.nics_per_node

    @property
    def element_bytes(self) -> int:
        """Of an activation in ``dtype``."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def peak(self) -> float:
        """Dense operations a second in ``dtype``: what MFU is measured against."""
        return self.peak_flops[self.dtype]

    def describe(self) -> list[str]:
        """A line a term, ``name: status: text``, for reports."""
        return [f"{name}: {self.terms[name]}" for name in TERMS]

    def require_gpus(self, gpus: int) -> None:
        """Nothing if the machine has so many devices.

        Raises:
            ValueError: it has not, or nothing was measured between nodes.
        """
        if not 1 <= gpus <= self.max_gpus:
            why = f"; {self.terms['inter_node'].text}" if self.nic_bytes_s == 0 else ""
            raise ValueError(f"platform {self.name!r} has 1 to {self.max_gpus} devices, not {gpus}{why}")

    def link(self, op: str, *, crosses: bool) -> Link:
        """Message cost and reached rate for an operation, measured for it where that was possible.

        Args:
            op: ``all_to_all``, ``all_gather``, ``reduce_scatter``, ``all_reduce`` or ``send_recv``.
            crosses: between nodes, where the rate is one NIC's; else a device's inside a node.

        Raises:
            ValueError: it crosses nodes, and nothing is known of the network between them.
        """
        if found := self.collectives.link(op, crosses=crosses):
            return found
        if not crosses:
            return Link(self.message_seconds.intra, self.intra_node_bytes_s * self.intra_node_share)
        if self.nic_bytes_s == 0:
            raise ValueError(f"platform {self.name!r}: {self.terms['inter_node'].text}")
        return Link(self.message_seconds.inter, self.nic_bytes_s * self.nic_share)

    def matmul_flops_s(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
        """Operations a second of a product ``(m, k) @ (k, n)``, in the shape that the arguments broadcast to."""
        operations = 2 * np.asarray(m, dtype=np.float64) * np.asarray(n) * np.asarray(k)
        return np.asarray(operations / self.rates.products(m, n, k).forward)

    def attention_flops_s(
        self, attention: Attention, hidden: int, sequence: int, *, tensor_parallel: int = 1, backward: bool = False
    ) -> float:
        """Operations a second of a whole block over one sequence; backward counts twice the forward's."""
        flops = sequence * float(shapes.block_flops(attention, hidden, sequence, tensor_parallel))
        parts = self.rates.attention(attention, hidden, sequence, sequence, tensor_parallel).values()
        if backward:
            return 2 * flops / sum(float(part.backward) for part in parts)
        return flops / sum(float(part.forward) for part in parts)

    def expert_flops_s(
        self,
        tokens_per_expert: ArrayLike,
        hidden: int,
        ffn: int,
        *,
        experts: ArrayLike = 1,
        matrices: int = 3,
        backward: bool = False,
    ) -> Array:
        """Operations a second of the grouped expert products; backward counts twice the forward's.

        Args:
            tokens_per_expert: rows of each expert, above 0.
            experts: on the device, each with so many rows.
        """
        rows = np.asarray(tokens_per_expert, dtype=np.float64) * np.asarray(experts)
        flops = 2 * rows * matrices * hidden * ffn
        passes = self.rates.experts(tokens_per_expert, experts, hidden, ffn, matrices)
        return np.asarray(2 * flops / passes.backward if backward else flops / passes.forward)
