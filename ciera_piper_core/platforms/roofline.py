"""Times of matrix products and memory passes from declared efficiencies, where nothing was measured.

A product needs the longer of two times. Its operations, padded to whole tiles and whole waves of
tiles over the compute units, at the largest share of the peak that such kernels reach. Its bytes,
operands and result once each, at the reached share of the memory bandwidth. The best of a few tile
sizes counts, as libraries choose. So a rate is never above the peak, and a time never falls as a
product grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.platforms import shapes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.models.architecture import Attention

    Array = NDArray[np.float64]

FUSED_BACKWARD_OVER_FORWARD = 2.5
"""Products that a fused attention kernel does backward for each two forward: five, as scores are made again."""

SLACK = 1e-9
"""Keeps a quotient that rounding left just above a whole number from counting one more tile."""


@dataclass(frozen=True)
class Passes:
    """Seconds of the three parts of a training step's work; arrays of one shape, or that broadcast.

    Attributes:
        forward: of the forward pass.
        backward_input, backward_weight: of the gradients of inputs, and of weights, which schedules may delay.
    """

    forward: Array
    backward_input: Array
    backward_weight: Array

    @property
    def backward(self) -> Array:
        """Seconds of the whole backward pass."""
        return np.asarray(self.backward_input + self.backward_weight)

    def __add__(self, other: Passes) -> Passes:
        return Passes(
            np.asarray(self.forward + other.forward),
            np.asarray(self.backward_input + other.backward_input),
            np.asarray(self.backward_weight + other.backward_weight),
        )

    def __mul__(self, factor: ArrayLike) -> Passes:
        times = np.asarray(factor, dtype=np.float64)
        return Passes(self.forward * times, self.backward_input * times, self.backward_weight * times)


@dataclass(frozen=True)
class Tile:
    """A kernel's tile of the result: ``rows`` by ``columns``, and the share of the largest rate that it reaches."""

    rows: int
    columns: int
    share: float


@dataclass(frozen=True)
class Efficiency:
    """What kernels reach of the device's rates; all shares above 0 and at most 1.

    Attributes:
        largest_share: of the peak, by a large matrix product.
        attention_share: of the peak, by fused attention.
        memory_share: of the memory bandwidth, by a pass over memory.
        tiles: to choose from.
        compute_units: tiles that are computed at once.
        kernel_seconds: fixed cost of a kernel.

    Raises:
        ValueError: a share outside of its range, no tile, no unit, or a negative cost.
    """

    largest_share: float
    attention_share: float
    memory_share: float
    tiles: tuple[Tile, ...]
    compute_units: int
    kernel_seconds: float

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("largest_share", "attention_share", "memory_share")}
        shares |= {f"share of tile {tile.rows}x{tile.columns}": tile.share for tile in self.tiles}
        for name, share in shares.items():
            if not 0 < share <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {share!r}")
        if not self.tiles or self.compute_units < 1 or not 0 <= self.kernel_seconds < np.inf:
            raise ValueError("an efficiency needs a tile, a compute unit, and kernel_seconds that are not negative")


REACHED = Efficiency(
    largest_share=1.0,
    attention_share=1.0,
    memory_share=1.0,
    tiles=(Tile(1, 1, 1.0),),
    compute_units=1,
    kernel_seconds=0.0,
)
"""For a peak and a bandwidth that were measured: both are what kernels reach."""


@dataclass(frozen=True)
class Roofline:
    """Rates of one device, from its peak and memory bandwidth.

    Attributes:
        peak_flops: dense operations a second, in the dtype that is computed in.
        memory_bandwidth_bytes_s: of the device.
        efficiency: what kernels reach of both.
        element_bytes: of what products read and write; 2 for bfloat16 and float16.
    """

    peak_flops: float
    memory_bandwidth_bytes_s: float
    efficiency: Efficiency
    element_bytes: int = 2

    def memory_seconds(self, bytes_moved: ArrayLike) -> Array:
        """Seconds to read and write so many bytes together."""
        rate = self.efficiency.memory_share * self.memory_bandwidth_bytes_s
        return np.asarray(np.asarray(bytes_moved, dtype=np.float64) / rate)

    def product_seconds(self, rows: ArrayLike, columns: ArrayLike, depth: ArrayLike, groups: ArrayLike = 1) -> Array:
        """Seconds of ``groups`` products of ``(rows, depth)`` by ``(depth, columns)`` in one kernel."""
        m, n, k, count = (np.asarray(value, dtype=np.float64) for value in (rows, columns, depth, groups))
        efficiency = self.efficiency
        moved = self.element_bytes * count * (m * k + k * n + m * n)
        computing = np.asarray(np.inf)
        for tile in efficiency.tiles:
            tiles = count * np.ceil(m / tile.rows - SLACK) * np.ceil(n / tile.columns - SLACK)
            waves = np.ceil(tiles / efficiency.compute_units - SLACK)
            operations = waves * efficiency.compute_units * tile.rows * tile.columns * 2 * k
            computing = np.minimum(computing, operations / (tile.share * efficiency.largest_share * self.peak_flops))
        busy = np.maximum(computing, self.memory_seconds(moved))
        return np.asarray(np.where(m * n * k * count > 0, busy + efficiency.kernel_seconds, 0.0))

    def products(self, rows: ArrayLike, columns: ArrayLike, depth: ArrayLike, groups: ArrayLike = 1) -> Passes:
        """A product and its two gradients: of the input (over the columns), of the weight (over the rows)."""
        return Passes(
            self.product_seconds(rows, columns, depth, groups),
            self.product_seconds(rows, depth, columns, groups),
            self.product_seconds(depth, columns, rows, groups),
        )

    def scores(self, attention: Attention, sequence: int, tokens: ArrayLike, tensor_parallel: ArrayLike = 1) -> Passes:
        """Fused attention without its projections; it has no weights."""
        tokens = np.asarray(tokens, dtype=np.float64)
        heads, kv_heads = shapes.local_heads(attention, tensor_parallel)
        efficiency = self.efficiency
        operations = tokens * shapes.score_flops(attention, sequence, tensor_parallel)
        computing = operations / (efficiency.attention_share * self.peak_flops)
        width = (heads + kv_heads) * (attention.qk_dim + attention.v_dim)
        memory = self.memory_seconds(self.element_bytes * tokens * width)
        forward = np.maximum(computing, memory) + efficiency.kernel_seconds
        backward = np.maximum(FUSED_BACKWARD_OVER_FORWARD * computing, 2 * memory) + efficiency.kernel_seconds
        return Passes(forward, backward, np.zeros_like(backward))

    def attention(
        self, attention: Attention, hidden: int, sequence: int, tokens: ArrayLike, tensor_parallel: ArrayLike = 1
    ) -> dict[str, Passes]:
        """``attention_projections`` and ``attention_scores`` of a block on ``tokens`` tokens of a rank."""
        products = shapes.attention_products(attention, hidden, tensor_parallel)
        first, *others = (self.products(tokens, columns, depth) for columns, depth in products)
        return {
            "attention_projections": sum(others, first),
            "attention_scores": self.scores(attention, sequence, tokens, tensor_parallel),
        }

    def experts(
        self, tokens_per_expert: ArrayLike, experts: ArrayLike, hidden: int, ffn: ArrayLike, matrices: int
    ) -> Passes:
        """The grouped products of ``experts`` experts, with the activation between them."""
        rows, count = np.asarray(tokens_per_expert, dtype=np.float64), np.asarray(experts, dtype=np.float64)
        inner = np.asarray(ffn, dtype=np.float64)
        into = self.products(rows, inner, hidden, count) * (matrices - 1)
        return into + self.products(rows, hidden, inner, count) + self.activation(rows * count, inner, matrices)

    def activation(self, rows: ArrayLike, ffn: ArrayLike, matrices: int) -> Passes:
        """The activation between a feed-forward block's products: reads its inputs, writes its output."""
        elements = np.asarray(rows, dtype=np.float64) * np.asarray(ffn, dtype=np.float64) * matrices
        forward = self.memory_seconds(self.element_bytes * elements)
        return Passes(forward, 2 * forward, np.zeros_like(forward))

    def attention_note(self, attention: Attention, hidden: int, sequence: int, tensor_parallel: int = 1) -> str:
        """How this block's time is known."""
        return "from the declared efficiencies"

    def experts_note(self, tokens_per_expert: float, hidden: int, ffn: int, matrices: int) -> str:
        """How these experts' time is known."""
        return "from the declared efficiencies"
