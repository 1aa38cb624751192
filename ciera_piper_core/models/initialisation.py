"""The first weights of a model, the same however it is spread: each is drawn from its name in the plain model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from ciera_piper_core.moe.grouped import Experts
from ciera_piper_core.moe.router import Router

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def initialise(
    model: torch.nn.Module,
    seed: int,
    *,
    name_of: Callable[[str], str] | None = None,
    experts_of: Callable[[str], Sequence[int]] | None = None,
) -> None:
    """Draw every parameter of ``model``; routers' biases become 0.

    A matrix is normal with variance 1 / inputs (its last dimension; so embeddings have variance
    1 / hidden), what has one dimension is 1. Numbers are drawn in float32 on the CPU and then rounded to
    the parameter's dtype. Parts of the plain model that are not in ``model`` change nothing.

    Args:
        model: the plain model, a stage of it, or one whose stacked experts are some of the plain model's.
        seed: of the recipe.
        name_of: from a parameter's name in ``model`` to its name in the plain model; None where they agree.
        experts_of: from the plain name of a stack of experts (``layers.3.routed_experts.experts.up``) to the
            numbers of those that ``model`` holds, in their order; None for all.

    Raises:
        ValueError: a parameter is sharded (initialise before sharding), or a stack has another number of
            experts than ``experts_of`` says.
    """
    stacked = {id(weight) for part in model.modules() if isinstance(part, Experts) for weight in part.parameters()}
    with torch.no_grad():
        for own_name, weight in model.named_parameters():
            name = name_of(own_name) if name_of else own_name
            if isinstance(weight, DTensor):
                raise ValueError(f"{own_name} is sharded already: initialise before sharding")
            if id(weight) not in stacked:
                weight.copy_(draw(seed, name, tuple(weight.shape)))
                continue
            numbers = experts_of(name) if experts_of else range(len(weight))
            if len(numbers) != len(weight):
                raise ValueError(f"{own_name} holds {len(weight)} experts, not the {len(numbers)} that it should")
            for row, number in zip(weight, numbers, strict=True):
                row.copy_(draw(seed, name, tuple(row.shape), expert=number))
    for part in model.modules():
        if isinstance(part, Router):
            part.reset_buffers()


def draw(seed: int, name: str, shape: tuple[int, ...], expert: int | None = None) -> Tensor:
    """The first value of a parameter, float32, on the CPU; a part of it is a slice of this.

    Args:
        seed: of the recipe.
        name: in the plain model.
        shape: of the whole parameter; of a stack of experts, the shape of one.
        expert: its number in a stack; None for other parameters.
    """
    if len(shape) < 2:
        return torch.ones(shape)
    identity = name if expert is None else f"{name}.{expert}"
    digest = hashlib.sha256(f"{seed}/{identity}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.empty(shape).normal_(std=shape[-1] ** -0.5, generator=generator)
