"""The end of a step: gradients clipped and applied, or left out, and routers' biases moved with the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.moe.balance import update_biases
from ciera_piper_core.training.gradient_norm import clip_factor, scale_gradients

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    import torch.distributed as dist

    from ciera_piper_core.training.loss_scaling import LossScaler
    from ciera_piper_core.training.optimizer import MasterWeights


def apply_gradients(
    model: torch.nn.Module,
    masters: MasterWeights,
    gradients: Mapping[str, torch.Tensor],
    scaled_norm: float,
    scaler: LossScaler,
    clip_norm: float,
    groups: Sequence[dist.ProcessGroup] = (),
) -> float:
    """Update the masters, unless loss scaling leaves the step out; the global norm without the loss's scale.

    Args:
        model: whose routers have counted (``moe.balance.update_biases``).
        gradients: of the masters, with the loss's scale; changed.
        scaled_norm: of them, over all ranks.
        clip_norm: to which the norm is clipped; 0 for no clipping.
        groups: over which routers' counts are summed.
    """
    norm = scaled_norm / scaler.scale
    factor = clip_factor(norm, clip_norm) / scaler.scale
    applied = scaler.after_step(scaled_norm)
    if applied:
        scale_gradients(gradients.values(), factor)
        masters.step()
    else:
        masters.clear()
    update_biases(model, groups, applied=applied)
    return norm
