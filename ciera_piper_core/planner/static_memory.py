"""Static memory: weights, gradients, master copy and moments, by optimizer, precision and ZeRO stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from ciera_piper_core.planner.weights import COMPONENTS, Weight, layer_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ciera_piper_core.models.architecture import Layer

Optimizer = Literal["adam", "adafactor", "sgd", "sgd_momentum"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)

Number: TypeAlias = "float | np.ndarray"


@dataclass(frozen=True)
class Precision:
    """Bytes of each number that training keeps.

    Attributes:
        name: of it.
        weight_bytes: of the weights that layers compute with, and of activations.
        gradient_bytes: of a gradient.
        master_bytes: of the optimizer's own copy of a weight; 0 where it updates the weights themselves.
        moment_bytes: of each of the optimizer's moments.
    """

    name: str
    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    moment_bytes: int


PRECISIONS = {
    "bf16": Precision("bf16", 2, 2, 4, 4),
    "fp16": Precision("fp16", 2, 2, 4, 4),
    "fp32": Precision("fp32", 4, 4, 0, 4),
}
"""bf16 and fp16 are mixed: master copy and moments are float32."""


@dataclass(frozen=True)
class StaticBytes:
    """Bytes that stay from step to step, on one GPU; each a number or an array.

    Attributes:
        weights, gradients: what layers compute with, and what they make.
        master, moments: what the optimizer keeps.
    """

    weights: Number
    gradients: Number
    master: Number
    moments: Number

    @property
    def total(self) -> Number:
        """All four."""
        return self.weights + self.gradients + self.master + self.moments

    def __add__(self, other: StaticBytes) -> StaticBytes:
        return StaticBytes(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.master + other.master,
            self.moments + other.moments,
        )


def precision_of(name: str) -> Precision:
    """The precision of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in PRECISIONS:
        raise ValueError(f"unknown precision {name!r}; known: {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def static_bytes_per_parameter(
    optimizer: str = "adam",
    precision: str = "bf16",
    zero_stage: int = 0,
    shards: Number = 1,
    *,
    moments_per_parameter: float | None = None,
) -> StaticBytes:
    """Static bytes of one parameter on one GPU; 16 by default.

    ZeRO stage 1 divides master copy and moments over ``shards``, stage 2 the gradients also, stage 3
    the weights also. Shards are taken as equal: padding to them, under one row a weight, is left out.

    Args:
        optimizer: of ``OPTIMIZERS``. precision: of ``PRECISIONS``. zero_stage: 0 to 3.
        shards: ranks that share; may be an array.
        moments_per_parameter: numbers that the optimizer keeps a parameter; by default 2 for Adam, 1 for
            SGD with momentum, 0 without. Adafactor's depends on the shapes of the weights:
            :func:`moment_elements` of them, divided by their elements.

    Raises:
        ValueError: an unknown name or stage, shards below 1, or Adafactor without its moments.
    """
    kept = precision_of(precision)
    if zero_stage not in range(4):
        raise ValueError(f"there is no ZeRO stage {zero_stage}; known: 0, 1, 2, 3")
    if np.any(np.asarray(shards) < 1):
        raise ValueError(f"weights cannot be divided over {shards} shards")
    if moments_per_parameter is None:
        if optimizer == "adafactor":
            raise ValueError("adafactor's moments depend on the weights' shapes: give moments_per_parameter")
        moments_per_parameter = _full_moments(optimizer)

    def divided(amount: float, stage: int) -> Number:
        return amount / shards if zero_stage >= stage else amount

    return StaticBytes(
        weights=divided(kept.weight_bytes, 3),
        gradients=divided(kept.gradient_bytes, 2),
        master=divided(kept.master_bytes, 1),
        moments=divided(kept.moment_bytes * moments_per_parameter, 1),
    )


def moment_elements(optimizer: str, weights: Iterable[Weight]) -> int:
    """Numbers that the optimizer keeps for these weights.

    Adafactor keeps of a matrix one number a row and one a column, as its authors have it without
    a first moment, and of a vector as many as it has.

    Raises:
        ValueError: an unknown optimizer.
    """
    if optimizer != "adafactor":
        return _full_moments(optimizer) * sum(weight.elements for weight in weights)
    return sum(
        weight.elements if weight.rows == 1 else weight.count * (weight.rows + weight.columns) for weight in weights
    )


def weights_static_bytes(
    weights: Iterable[Weight], optimizer: str = "adam", precision: str = "bf16", zero_stage: int = 0, shards: Number = 1
) -> StaticBytes:
    """Static bytes of these weights on one GPU; arguments as of :func:`static_bytes_per_parameter`."""
    weights = tuple(weights)
    elements = sum(weight.elements for weight in weights)
    if not elements:
        return StaticBytes(0.0, 0.0, 0.0, 0.0)
    moments = moment_elements(optimizer, weights) / elements
    one = static_bytes_per_parameter(optimizer, precision, zero_stage, shards, moments_per_parameter=moments)
    return StaticBytes(one.weights * elements, one.gradients * elements, one.master * elements, one.moments * elements)


def layer_static_bytes(
    layer: Layer,
    hidden: int,
    *,
    optimizer: str = "adam",
    precision: str = "bf16",
    zero_stage: int = 0,
    shards: Number = 1,
    expert_parallel: Number = 1,
    expert_shards: Number = 1,
) -> dict[str, StaticBytes]:
    """Static bytes of one layer on one GPU, by part.

    Args:
        layer, hidden: what it is.
        optimizer, precision, zero_stage: as of :func:`static_bytes_per_parameter`.
        shards: ranks that share the replicated parts. expert_shards: ranks that share each routed expert.
        expert_parallel: ranks that the routed experts are spread over; each holds as many of them. An array
            gives arrays. Where the experts do not divide, this is the mean.
    """
    parts: dict[str, StaticBytes] = {}
    weights = layer_weights(layer, hidden)
    for component in COMPONENTS:
        own = [weight for weight in weights if weight.component == component]
        if component != "routed_experts":
            parts[component] = weights_static_bytes(own, optimizer, precision, zero_stage, shards)
            continue
        whole = weights_static_bytes(own, optimizer, precision, zero_stage, expert_shards)
        parts[component] = StaticBytes(
            whole.weights / expert_parallel,
            whole.gradients / expert_parallel,
            whole.master / expert_parallel,
            whole.moments / expert_parallel,
        )
    return parts


def _full_moments(optimizer: str) -> int:
    moments = {"adam": 2, "sgd": 0, "sgd_momentum": 1}
    if optimizer not in moments:
        raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    return moments[optimizer]
