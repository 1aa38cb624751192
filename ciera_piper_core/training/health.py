"""Numbers that are none: a training run stops at them, and says in which step and layer they arose."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ciera_piper_core.training.recipe import Recipe


class NonFiniteError(RuntimeError):
    """A loss or a gradient is NaN or infinite.

    Attributes:
        step: from 0.
        where: the first module, parameter or input that is not finite, by its name; ``loss`` if all others are.
    """

    def __init__(self, step: int, where: str, what: str) -> None:
        """
        Args:
            what: of ``where``: ``output``, ``weight``, ``gradient``.
        """
        super().__init__(
            f"step {step}: {what} of {where} is not finite; lower the learning rate, look at the data of this step,"
            " or resume from the checkpoint before"
        )
        self.step, self.where = step, where


class Found(NamedTuple):
    """What is not finite in a model: its name, and what of it (``weight``, ``output``, or ``value`` of the loss).

    Attributes:
        place: of an output, how many modules had ended before: so that of ranks that run the same modules, and
            infect each other, the first can be told.
    """

    where: str
    what: str
    place: int = 0


def check_batch(batch: torch.Tensor, recipe: Recipe, step: int) -> None:
    """Refuse a batch that is none of the recipe's.

    Raises:
        ValueError: another shape or dtype, or a token outside the vocabulary; names the step and the place.
    """
    expected = (recipe.global_batch, recipe.sequence + 1)
    if tuple(batch.shape) != expected or batch.dtype != torch.int64:
        raise ValueError(
            f"step {step}: a batch is int64 of shape {expected} (global_batch, sequence + 1),"
            f" not {batch.dtype} of {tuple(batch.shape)}"
        )
    vocab = recipe.architecture.vocab
    # Of the embedding: it is what has no row for them.
    with region("embedding"):
        wrong = ((batch < 0) | (batch >= vocab)).nonzero()
    if len(wrong):
        sequence, position = wrong[0].tolist()
        raise ValueError(
            f"step {step}: token {int(batch[sequence, position])} at position {position} of sequence {sequence}"
            f" is not below the vocabulary's {vocab}"
        )


def require_finite(loss: float, step: int, model: torch.nn.Module, run: Callable[[], object] | None = None) -> None:
    """Return if ``loss`` is finite; else find out where it went wrong and stop.

    Collective where ``run`` is: the loss must be the same on all ranks, so that all of them are here or none.

    Args:
        loss: of the whole batch.
        step: from 0.
        model: whose modules are watched; on one rank, a part of the plain model.
        run: the forward pass once more; None to look at weights alone.

    Raises:
        NonFiniteError: names the step and the first module.
    """
    if not math.isfinite(loss):
        found = first_non_finite(model, run)
        raise NonFiniteError(step, found.where, found.what)


def require_finite_norm(norm: float, step: int, gradients: Mapping[str, torch.Tensor]) -> None:
    """Return if the global gradient norm is finite; else say which gradient is not. For runs without loss scaling.

    Args:
        gradients: this rank's, by name.

    Raises:
        NonFiniteError: names the step and the first such gradient of this rank, or says that it is another rank's.
    """
    if math.isfinite(norm):
        return
    for name, gradient in gradients.items():
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        if not bool(local.isfinite().all()):
            raise NonFiniteError(step, name, "gradient")
    raise NonFiniteError(step, "weights of another rank", "gradient")


def first_non_finite(model: torch.nn.Module, run: Callable[[], object] | None = None) -> Found:
    """What went wrong first.

    Args:
        model: whose weights are looked at, and then its modules' outputs, in the order in which they end.
        run: a forward pass of ``model``, which is run without gradients; None to look at weights alone.

    Returns:
        the first weight that is not finite and ``weight``; else the first module whose output is not, and
        ``output``; else ``loss`` and ``value``.
    """
    for name, weight in model.named_parameters():
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if not bool(local.isfinite().all()):
            return Found(name, "weight")
    found: list[Found] = []
    ended = itertools.count()

    def watch(name: str) -> Callable[[torch.nn.Module, object, object], None]:
        def look(module: torch.nn.Module, inputs: object, output: object) -> None:
            place = next(ended)
            # The pass goes on after the first was found: peers may wait in a collective.
            if found or not isinstance(output, torch.Tensor) or not output.is_floating_point():
                return
            if not bool(output.isfinite().all()):
                found.append(Found(name, "output", place))

        return look

    if run is not None:
        hooks = [part.register_forward_hook(watch(name or "the model")) for name, part in model.named_modules()]
        try:
            with torch.no_grad():
                run()
        finally:
            for hook in hooks:
                hook.remove()
    return found[0] if found else Found("the loss", "value")
