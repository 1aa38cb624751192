"""The optimizers of a recipe over float32 master weights; their state goes by parameter name, so experts can move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ciera_piper_core.training.adafactor import Adafactor
from ciera_piper_core.training.build import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ciera_piper_core.training.recipe import Recipe


def make_optimizer(recipe: Recipe, parameters: Mapping[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW (torch's, fused) or Adafactor (ours), with the recipe's settings and a state that is there from the start.

    Args:
        parameters: by name, float32; plain or DTensors.
    """
    weights = list(parameters.values())
    if recipe.optimizer == "adafactor":
        return Adafactor(weights, recipe.learning_rate, recipe.weight_decay)
    adam = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    for weight in weights:
        # What its first step would make; so that a checkpoint, or an expert's move, may come before it.
        adam.state[weight] = {
            "step": torch.zeros((), dtype=torch.float32, device=weight.device),
            "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
        }
    return adam


class MasterWeights:
    """Float32 masters of a module's working weights, and the optimizer over them.

    Where the working weights are float32 they are the masters. Otherwise a step is taken on the masters,
    and the working weights are rounded from them. A stack of experts is one parameter; all of its state has
    the experts in its first dimension (but for ``step``), so rows of it can be moved to another rank.

    A step is ``collect_gradients`` after each microbatch, whatever is to be done with ``gradients``, then ``step``.

    Attributes:
        working: by name, the weights that the model computes with; those that are trained.
        masters: by the same names, leaves in float32; their ``grad`` is what a step uses.
        optimizer: over the masters.
    """

    def __init__(self, model: torch.nn.Module, recipe: Recipe, *, precision: torch.dtype | None = None) -> None:
        """Take over a model whose parameters are float32, and round them to the recipe's precision, in place.

        Args:
            precision: of the working weights; None for the recipe's.

        Raises:
            ValueError: a parameter is not float32: masters must have the first weights unrounded.
        """
        dtype = precision or DTYPES[recipe.precision]
        self.working = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        for name, weight in model.named_parameters():
            if weight.dtype != torch.float32:
                raise ValueError(f"{name} is {weight.dtype}; masters are made from float32 weights, before rounding")
        self._shared = dtype == torch.float32
        if self._shared:
            self.masters = dict(self.working)
        else:
            self.masters = {name: torch.nn.Parameter(weight.detach().clone()) for name, weight in self.working.items()}
            for weight in model.parameters():
                weight.data = weight.data.to(dtype)
        self.optimizer = make_optimizer(recipe, self.masters)

    def collect_gradients(self) -> None:
        """Add the working weights' gradients to the masters', in float32, and clear them.

        Called after each microbatch, sums are float32 whatever the precision; where the working weights are
        the masters they have summed already. A weight without gradient gets zeros, so that all ranks have the
        same set.
        """
        for name, master in self.masters.items():
            if not self._shared:
                gradient, self.working[name].grad = self.working[name].grad, None
                if gradient is not None and master.grad is not None:
                    master.grad.add_(gradient)
                elif gradient is not None:
                    master.grad = gradient.to(torch.float32)
            if master.grad is None:
                master.grad = torch.zeros_like(master)

    def gradients(self) -> dict[str, Tensor]:
        """The masters' gradients, by name.

        Raises:
            ValueError: one has none yet.
        """
        gradients = {}
        for name, master in self.masters.items():
            if master.grad is None:
                raise ValueError(f"{name} has no gradient: collect_gradients comes first")
            gradients[name] = master.grad
        return gradients

    def step(self) -> None:
        """One step of the optimizer on the masters' gradients; working weights follow, gradients are cleared."""
        self.optimizer.step()
        self.clear()
        self.refresh()

    def clear(self) -> None:
        """Forget all gradients."""
        for weights in (self.masters, self.working):
            for weight in weights.values():
                weight.grad = None

    def refresh(self) -> None:
        """Round the working weights from the masters, after these were stepped, loaded or moved."""
        if self._shared:
            return
        with torch.no_grad():
            for name, weight in self.working.items():
                weight.copy_(self.masters[name])

    def state(self, name: str) -> dict[str, Tensor]:
        """All state of one parameter: the tensors themselves.

        Returns:
            ``master``, and the optimizer's: ``step``, ``exp_avg``, ``exp_avg_sq`` of AdamW; of Adafactor
            ``step`` and ``row`` and ``column``, or ``variance``. ``step`` has no dimensions.
        """
        return {"master": self.masters[name].detach(), **self.optimizer.state[self.masters[name]]}

    def set_state(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Replace all state of one parameter; the working weight follows, and the gradient is dropped.

        Parameters stay the same objects, but their memory is new; a stack may have another number of experts.

        Raises:
            KeyError: a part of ``state(name)`` is missing.
        """
        master, working = self.masters[name], self.working[name]
        own = self.optimizer.state[master]
        if missing := sorted({"master", *own} - state.keys()):
            raise KeyError(f"state of {name} without {missing[0]!r}")
        master.grad = working.grad = None
        master.data = state["master"]
        if not self._shared:
            working.data = state["master"].to(working.dtype)
        for part in own:
            own[part] = state[part]

    def state_dict(self) -> dict[str, Tensor]:
        """``<name>.<part>`` for every parameter and part of its state: the tensors themselves."""
        return {f"{name}.{part}": value for name in self.masters for part, value in self.state(name).items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state_dict`` gave; gradients are cleared.

        Raises:
            KeyError: something is missing.
        """
        with torch.no_grad():
            for name in self.masters:
                for part, value in self.state(name).items():
                    value.copy_(state[f"{name}.{part}"])
        self.clear()
        self.refresh()
