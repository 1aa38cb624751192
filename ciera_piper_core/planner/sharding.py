"""A layer as one tensor-parallel rank has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import Recurrence

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Attention, Experts, FeedForward, Layer


def tensor_parallel_share(layer: Layer, tensor_parallel: int) -> Layer:
    """The layer whose weights are those of one of ``tensor_parallel`` ranks.

    Heads and inner widths are divided; key/value heads are copied where there are fewer than ranks.
    The router, norms, and MLA's projections down to its latents are whole on each rank. Biases and
    other extras count whole, which is more than a rank has, by little.
    """
    if tensor_parallel == 1:
        return layer
    return replace(
        layer,
        mixer=_recurrence(layer.mixer, tensor_parallel)
        if isinstance(layer.mixer, Recurrence)
        else _attention(layer.mixer, tensor_parallel),
        cross=_attention(layer.cross, tensor_parallel),
        experts=None if layer.experts is None else _experts(layer.experts, tensor_parallel),
        dense=None if layer.dense is None else _dense(layer.dense, tensor_parallel),
    )


def _recurrence(mixer: Recurrence, ranks: int) -> Recurrence:
    return replace(mixer, matrix_parameters=-(-mixer.matrix_parameters // ranks), width=-(-mixer.width // ranks))


def _attention(mixer: Attention | None, ranks: int) -> Attention | None:
    if mixer is None:
        return None
    projections = mixer.projection_parameters
    return replace(
        mixer,
        heads=max(1, mixer.heads // ranks),
        kv_heads=max(1, mixer.kv_heads // ranks),
        projection_parameters=None if projections is None else -(-projections // ranks),
    )


def _experts(experts: Experts, ranks: int) -> Experts:
    return replace(experts, ffn=max(1, -(-experts.ffn // ranks)), shared_ffn=-(-experts.shared_ffn // ranks))


def _dense(dense: FeedForward, ranks: int) -> FeedForward:
    return replace(dense, ffn=max(1, -(-dense.ffn // ranks)))
