"""Times of a device's work from measured tables, at the shapes that are asked for.

- Attention blocks: the rate of the whole block against the sequence, blended over the measured
  shapes by their distance in octaves. A shape that was measured counts alone.
- Experts: seconds against tokens an expert, blended over the measured widths likewise.
- Other products: seconds against operations, the median over the shapes of ``matmul_peak``, and
  never less than their bytes need at the measured memory bandwidth.

No rate is above the peak, which is the largest product measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.platforms import shapes
from ciera_piper_core.platforms.roofline import Passes, Roofline
from ciera_piper_core.platforms.tables import RateCurve, SecondsCurve, blend_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.models.architecture import Attention

    Array = NDArray[np.float64]

LINEAR_BACKWARD = 2.0
"""Operations backward over forward."""


@dataclass(frozen=True)
class AttentionCurve:
    """Rates of one measured block; operations a second against the sequence.

    Attributes:
        name: of the measured shape, for people.
        dimensions: hidden, heads, and the widths of a head's key and value, on one rank.
        kind: ``mha``, ``gqa`` or ``mla``.
        forward, backward: rates; ``backward`` is None where it was not measured.
    """

    name: str
    dimensions: tuple[float, ...]
    kind: str
    forward: RateCurve
    backward: RateCurve | None


@dataclass(frozen=True)
class ExpertCurve:
    """Seconds a weight of an expert against tokens an expert.

    Attributes:
        name: of the measured shape, for people.
        dimensions: hidden, ffn, matrices.
        forward, backward: curves; ``backward`` is None where it was not measured.
    """

    name: str
    dimensions: tuple[float, ...]
    forward: SecondsCurve
    backward: SecondsCurve | None


def attention_dimensions(attention: Attention, hidden: int, tensor_parallel: int = 1) -> tuple[float, ...]:
    """What the distance between attention blocks is taken over."""
    heads, _ = shapes.local_heads(attention, tensor_parallel)
    return float(hidden), float(heads), float(attention.qk_dim), float(attention.v_dim)


@dataclass(frozen=True)
class MeasuredRates:
    """Rates of one device, looked up.

    Attributes:
        roofline: of the measured peak and bandwidth of one device; the bound of all rates.
        matmul: seconds against operations.
        attention_curves, expert_curves: at least one each.
        sharing: devices that share what the tables were measured on: all seconds of tables are so
            many times longer. 1 for an accelerator.
    """

    roofline: Roofline
    matmul: SecondsCurve
    attention_curves: tuple[AttentionCurve, ...]
    expert_curves: tuple[ExpertCurve, ...]
    sharing: float = 1.0

    def memory_seconds(self, bytes_moved: ArrayLike) -> Array:
        """Seconds to read and write so many bytes together."""
        return self.roofline.memory_seconds(bytes_moved)

    def activation(self, rows: ArrayLike, ffn: ArrayLike, matrices: int) -> Passes:
        """The activation between a feed-forward block's products."""
        return self.roofline.activation(rows, ffn, matrices)

    def products(self, rows: ArrayLike, columns: ArrayLike, depth: ArrayLike, groups: ArrayLike = 1) -> Passes:
        """A product and its two gradients, which have as many operations and the same operands."""
        m, n, k, count = (np.asarray(value, dtype=np.float64) for value in (rows, columns, depth, groups))
        operations = 2 * count * m * n * k
        moved = self.roofline.element_bytes * count * (m * k + k * n + m * n)
        with np.errstate(divide="ignore"):
            looked_up = np.where(operations > 0, self.sharing * self.matmul.seconds_at(operations), 0.0)
        bound = np.maximum(self.memory_seconds(moved), operations / self.roofline.peak_flops)
        seconds = np.maximum(looked_up, bound)
        return Passes(seconds, seconds, seconds)

    def attention(
        self, attention: Attention, hidden: int, sequence: int, tokens: ArrayLike, tensor_parallel: ArrayLike = 1
    ) -> dict[str, Passes]:
        """``attention_projections`` and ``attention_scores`` of a block on ``tokens`` tokens of a rank.

        The tables know the whole block; its parts share the time as their bounds would.
        """
        bounds = self.roofline.attention(attention, hidden, sequence, tokens, tensor_parallel)
        ranks = np.asarray(tensor_parallel, dtype=np.float64)
        degrees, place = np.unique(ranks, return_inverse=True)
        each = np.array([self._attention_inverse(attention, hidden, sequence, int(degree)) for degree in degrees])
        inverse = each[place.reshape(ranks.shape)]
        per_token = shapes.block_flops(attention, hidden, sequence, tensor_parallel)
        flops = np.asarray(tokens, dtype=np.float64) * per_token
        whole = sum(bounds.values(), start=_NOTHING)
        forward = np.maximum(flops * inverse[..., 0], whole.forward)
        backward = np.maximum(LINEAR_BACKWARD * flops * inverse[..., 1], whole.backward)
        return {
            name: Passes(
                forward * part.forward / whole.forward,
                backward * part.backward_input / whole.backward,
                backward * part.backward_weight / whole.backward,
            )
            for name, part in bounds.items()
        }

    def experts(
        self, tokens_per_expert: ArrayLike, experts: ArrayLike, hidden: int, ffn: ArrayLike, matrices: int
    ) -> Passes:
        """The products of ``experts`` experts; the activation is in the tables, so it is in the time."""
        rows, count, width = np.broadcast_arrays(
            *(np.asarray(value, dtype=np.float64) for value in (tokens_per_expert, experts, ffn))
        )
        weights = count * width * hidden * matrices
        forward, backward = np.zeros(rows.shape), np.zeros(rows.shape)
        for one in np.unique(width):
            here = width == one
            forward[here], backward[here] = self._expert_seconds(rows[here], (float(hidden), float(one), matrices))
        bound = 2 * rows * weights / self.roofline.peak_flops
        forward = np.maximum(self.sharing * weights * forward, bound)
        backward = np.maximum(self.sharing * weights * backward, LINEAR_BACKWARD * bound)
        return Passes(forward, backward / 2, backward / 2)

    def attention_note(self, attention: Attention, hidden: int, sequence: int, tensor_parallel: int = 1) -> str:
        """How this block's time is known: measured, between measured shapes, or beyond them."""
        curves = self._alike(attention)
        target = attention_dimensions(attention, hidden, tensor_parallel)
        weights = blend_weights(target, [curve.dimensions for curve in curves])
        nearest = curves[int(np.argmax(weights))]
        size = f"sequence {sequence}"
        return _note(nearest.name, nearest.dimensions == target, nearest.forward.covers(sequence), size, nearest.kind)

    def experts_note(self, tokens_per_expert: float, hidden: int, ffn: int, matrices: int) -> str:
        """How these experts' time is known."""
        target = (float(hidden), float(ffn), float(matrices))
        weights = blend_weights(target, [curve.dimensions for curve in self.expert_curves])
        nearest = self.expert_curves[int(np.argmax(weights))]
        exact = nearest.dimensions == target
        size = f"{tokens_per_expert:.4g} tokens an expert"
        return _note(nearest.name, exact, bool(nearest.forward.covers(tokens_per_expert)), size, "experts")

    def _alike(self, attention: Attention) -> Sequence[AttentionCurve]:
        """Curves of blocks of the same kind, or all if there are none."""
        alike = [curve for curve in self.attention_curves if curve.kind == attention.head_kind]
        return alike or self.attention_curves

    def _attention_inverse(self, attention: Attention, hidden: int, sequence: int, ranks: int) -> tuple[float, float]:
        """Seconds an operation, forward and backward."""
        curves = self._alike(attention)
        weights = blend_weights(attention_dimensions(attention, hidden, ranks), [c.dimensions for c in curves])
        forward = np.array([float(curve.forward.rate_at(sequence)) for curve in curves])
        backward = np.array([float((curve.backward or curve.forward).rate_at(sequence)) for curve in curves])
        return (
            float(self.sharing * np.exp(-weights @ np.log(forward))),
            float(self.sharing * np.exp(-weights @ np.log(backward))),
        )

    def _expert_seconds(self, rows: Array, target: tuple[float, ...]) -> tuple[Array, Array]:
        """Forward and backward seconds a weight; backward is twice forward where it was not measured."""
        weights = blend_weights(target, [curve.dimensions for curve in self.expert_curves])
        safe = np.maximum(rows, np.finfo(np.float64).tiny)
        forward, backward = np.zeros(rows.shape), np.zeros(rows.shape)
        for weight, curve in zip(weights, self.expert_curves, strict=True):
            ahead = np.log(curve.forward.seconds_at(safe))
            back = (
                ahead + np.log(LINEAR_BACKWARD) if curve.backward is None else np.log(curve.backward.seconds_at(safe))
            )
            forward, backward = forward + weight * ahead, backward + weight * back
        some = rows > 0
        return np.where(some, np.exp(forward), 0.0), np.where(some, np.exp(backward), 0.0)


_NOTHING = Passes(np.zeros(()), np.zeros(()), np.zeros(()))


def _note(nearest: str, exact: bool, covered: bool, size: str, kind: str) -> str:
    where = f"measured at this shape ({nearest})" if exact else f"between measured {kind}, nearest {nearest}"
    return where if covered else f"extrapolated: {size} is outside what was measured of {nearest}"
