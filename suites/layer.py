"""What the suites that compute a model's layer share: data, forward pass, gradients, and what is kept for the check."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from suites.compute import ComputeSuite, ThreadedWorkload
from suites.tensors import fill, torch_dtype

if TYPE_CHECKING:
    import torch

    from bench.suite import Case, Context

WEIGHT_SEED = 10
"""Added to the run's seed for a layer's first weight; input and upstream gradient come before."""

Layer = TypeVar("Layer", bound="torch.nn.Module")


def filled_weights(layer: Layer, seed: int) -> Layer:
    """``layer`` with normal weights that keep the size of what they multiply; they follow from the run's seed."""
    for index, weight in enumerate(layer.parameters()):
        fill(weight, seed + WEIGHT_SEED + index, weight.shape[-1] ** -0.5)
    return layer


class LayerWorkload(ThreadedWorkload):
    """One pass through a layer: its output, and with ``forward_backward`` the gradients of input and weights.

    Attributes:
        output: of the last pass, in the shape of the input; NaN before the first one.
        gradients: of the last pass: of the input, then of the weights in their order; empty for ``forward``.
    """

    def __init__(self, suite: ComputeSuite, case: Case, context: Context, shape: tuple[int, ...]) -> None:
        """Make input and upstream gradient of ``shape``; the output has the same."""
        import torch

        super().__init__(case, context.site)
        self.work = suite.work(case, context.site)
        self._backward = case["direction"] == "forward_backward"
        dtype, device, seed = torch_dtype(case["dtype"]), context.site.device, context.site.seed
        self._input = fill(torch.empty(shape, dtype=dtype, device=device), seed).requires_grad_(self._backward)
        self._upstream = fill(torch.empty(shape, dtype=dtype, device=device), seed + 1) if self._backward else None
        self.output = torch.full(shape, torch.nan, dtype=dtype, device=device)
        self.gradients: tuple[torch.Tensor, ...] = ()

    @property
    @abstractmethod
    def _layer(self) -> torch.nn.Module:
        """The layer whose weights the next pass uses."""

    def _forward(self) -> torch.Tensor:
        output: torch.Tensor = self._layer(self._input)
        return output

    def run(self) -> None:
        import torch

        with torch.set_grad_enabled(self._backward):
            output = self._forward()
        if self._upstream is not None:
            self.gradients = torch.autograd.grad(output, (self._input, *self._layer.parameters()), self._upstream)
        self.output = output.detach()
