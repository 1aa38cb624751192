"""The activation between an expert's matrices, with the router's weights in it.

Weights are applied here and not to the experts' outputs: ``down(w * a) == w * down(a)``, and the
outputs, ``hidden`` wide, need not be kept for the weights' gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor


def activate(up: Tensor, gate: Tensor | None, weights: Tensor | None = None) -> Tensor:
    """SwiGLU with a gate, ReLU without; times the weights.

    Kept for the backward pass: the gate and ``up``, or with ReLU ``up`` if there are weights and
    the result if there are none; and the weights. The result itself is kept by who multiplies it.

    Args:
        up, gate: ``(tokens, ffn)``.
        weights: float32, ``(tokens,)``, or None.

    Returns:
        ``(tokens, ffn)``, in the dtype of ``up``.
    """
    if gate is None and weights is None:
        return F.relu(up)
    activated: Tensor = _Activation.apply(up, gate, weights)  # type: ignore[no-untyped-call]
    return activated


class _Activation(torch.autograd.Function):
    """Written out, because autograd would also keep ``silu(gate)`` and the unweighted product."""

    @staticmethod
    def forward(ctx: Any, up: Tensor, gate: Tensor | None, weights: Tensor | None) -> Tensor:
        ctx.save_for_backward(up, gate, weights)
        inner = F.relu(up) if gate is None else F.silu(gate).mul_(up)
        # In place the product is rounded once, from a float32 product.
        return inner if weights is None else inner.mul_(weights[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        up, gate, weights = ctx.saved_tensors
        gradient, of_weights = gradients[0], None
        activated = F.relu(up) if gate is None else F.silu(gate)
        if weights is not None:
            buffer = gradient * activated
            if gate is not None:
                buffer.mul_(up)
            of_weights = buffer.sum(-1, dtype=weights.dtype)
            # The buffer serves twice: these are the largest tensors that a layer's backward pass makes.
            gradient = torch.mul(gradient, weights[:, None], out=buffer)
        if gate is None:
            return activated.sign_().mul_(gradient), None, of_weights
        of_gate = gradient * up
        torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
        return activated.mul_(gradient), of_gate, of_weights
