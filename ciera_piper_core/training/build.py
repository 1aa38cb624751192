"""The plain model of a recipe, as every system has it before it spreads it over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.transformer import Transformer

if TYPE_CHECKING:
    from ciera_piper_core.training.recipe import Precision, Recipe

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def empty_model(
    recipe: Recipe, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """The recipe's model, uninitialised; on ``meta`` it costs nothing."""
    return Transformer(
        recipe.architecture, dtype=dtype, device=device, checkpointing=recipe.checkpointing, routing=recipe.routing
    )


def build_model(recipe: Recipe, *, device: torch.device | str = "cpu") -> Transformer:
    """The recipe's whole model in float32, with its first weights."""
    model = empty_model(recipe, device=device)
    initialise(model, recipe.seed)
    return model


def tie_embeddings(model: Transformer, recipe: Recipe) -> None:
    """Make output projection and embedding one parameter again, where they are tied: ``to_empty`` makes two of it.

    A stage of a pipeline may lack either.
    """
    if recipe.architecture.tied_embeddings and model.output is not None and model.embedding is not None:
        model.output.weight = model.embedding.weight
