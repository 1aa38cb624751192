"""How often each expert was chosen in each step of a training, over all ranks: where two trainings' routes part."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.alltoall.dispatch import DROPPED
from ciera_piper_core.moe.router import Router, is_recomputing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ciera_piper_core.models.architecture import Architecture

_LAYER = re.compile(r"\blayers\.(\d+)\b")


class RouteCounts:
    """Counts choices in forward passes that learn; what a backward pass computes again is not counted twice.

    Attributes:
        steps: shares of all choices of a layer, layer after layer, ``(experts of all layers,)``, of each
            step that :meth:`shared` has seen; ranks that route copies of the same tokens change nothing.
    """

    def __init__(self, model: torch.nn.Module, architecture: Architecture) -> None:
        """
        Args:
            model: its part on this rank; layers are found by their names, ``layers.N``.
            architecture: of the whole model.
        """
        self.steps: list[list[float]] = []
        self._sizes = [layer.experts.experts if layer.experts else 0 for layer in architecture.layers]
        self._mine: list[list[list[int]]] = []
        self._counts: dict[int, torch.Tensor] = {}
        self._handles = []
        for name, module in model.named_modules():
            if isinstance(module, Router) and (found := _LAYER.search(name)):
                self._handles.append(module.register_forward_hook(self._hook(int(found[1]), module.experts)))

    def end_step(self) -> None:
        """The step is over; what comes next is of another one."""
        self._mine.append([self._of_layer(layer) for layer in range(len(self._sizes))])
        self._counts.clear()

    def shared(self, gather: Callable[[list[list[list[int]]]], Sequence[list[list[list[int]]]]]) -> list[list[float]]:
        """All steps so far, over all ranks (collective); none where the system chooses by other routers than these.

        Args:
            gather: every rank's object, on every rank.
        """
        fresh, self._mine = self._mine, []
        everyone = gather(fresh)
        for step in range(len(fresh)):
            row: list[float] = []
            for layer in range(len(self._sizes)):
                summed = [sum(counts) for counts in zip(*(rank[step][layer] for rank in everyone), strict=True)]
                total = sum(summed) or 1
                row += [count / total for count in summed]
            self.steps.append(row)
        return self.steps if any(map(any, self.steps)) else []

    def close(self) -> None:
        """Count no more."""
        while self._handles:
            self._handles.pop().remove()

    def _of_layer(self, layer: int) -> list[int]:
        counted = self._counts.get(layer)
        return [0] * self._sizes[layer] if counted is None else counted.tolist()

    def _hook(self, layer: int, experts: int) -> Callable[..., None]:
        def count(module: torch.nn.Module, inputs: object, routes: tuple[torch.Tensor, ...]) -> None:
            if not torch.is_grad_enabled() or is_recomputing():
                return
            chosen = routes[1].flatten()
            found = torch.bincount(chosen[chosen != DROPPED], minlength=experts)
            self._counts[layer] = found + self._counts[layer] if layer in self._counts else found

        return count
