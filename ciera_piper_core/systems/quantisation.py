"""Block quantisation as ZeRO++ does it: codes and steps, group sizes, and how large an error may be.

A block's step is its largest magnitude over ``2 ** (bits - 1)``; a code is the nearest whole number of
steps (ties to even), cut to what the bits can hold. So an error is half a step at most, except at the
positive end of the range: the largest value itself, if positive, comes back one step too small.

Source: ZeRO++ (arXiv 2306.10209), and DeepSpeed 0.19: ``quantization_utils.h`` (symmetric parameters),
``partition_parameters.py`` (groups of weights), ``coalesced_collectives.py`` (groups of gradients).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Bits = Literal[4, 8]

TARGET_GROUP_VALUES = 8000
"""What DeepSpeed aims at for a group of weights."""

GROUP_VALUES_LIMIT = 16000
"""Groups of weights are smaller than this."""


def weight_groups(values: int) -> int:
    """Groups that DeepSpeed quantises so many weights in: all of one size, a multiple of 8.

    The fewest that are not larger than the target, if their size comes out; groups above the target are halved.

    Raises:
        ValueError: no such groups; DeepSpeed stops there.
    """
    groups = math.ceil(values / TARGET_GROUP_VALUES)
    while groups < values and values % (8 * groups):
        groups += 1
    while groups and values % (16 * groups) == 0 and values / groups > TARGET_GROUP_VALUES:
        groups *= 2
    if not groups or values % (8 * groups) or values / groups >= GROUP_VALUES_LIMIT:
        raise ValueError(f"{values} weights do not make groups of a multiple of 8; pad them to a multiple of 8")
    return groups


def weight_block(values: int) -> int:
    """Values of a block of a shard of so many weights.

    DeepSpeed's where its rule finds blocks of at least a tenth of its target; else the target itself with a shorter
    last block, which a shard that nobody padded needs.
    """
    padded = max(8, -(-values // 8) * 8)
    block = padded // weight_groups(padded)
    return block if block >= min(padded, TARGET_GROUP_VALUES // 10) else TARGET_GROUP_VALUES


def gradient_groups(shape: Sequence[int], world: int) -> int:
    """Groups that DeepSpeed quantises a gradient of two or more dimensions in before the first exchange.

    Raises:
        ValueError: a vector; DeepSpeed does not quantise those.
    """
    if len(shape) < 2:
        raise ValueError("gradients of vectors are not quantised")
    return max(shape[0], shape[1], world)


def gradient_block(shape: Sequence[int], world: int) -> int:
    """Values of a block of a gradient of that shape, in both exchanges."""
    return max(1, math.prod(shape) // gradient_groups(shape, world))


def blocks_of(values: int, block: int) -> int:
    """Blocks of so many values; the last may be shorter."""
    return -(-values // block)


def code_bytes(values: int, bits: Bits) -> int:
    """Bytes of the codes of so many values."""
    return values if bits == 8 else -(-values // 2)


def quantise(values: Tensor, block: int, bits: Bits) -> tuple[Tensor, Tensor]:
    """Codes and steps of rows of values.

    Args:
        values: ``(rows, values)``, of any floating type.
        block: values of a block; blocks begin anew in each row.

    Returns:
        codes, uint8 ``(rows, code_bytes(values, bits))``: int8, or two int4 in a byte, the first in the lower half;
        and steps, float32 ``(rows, blocks)``. A block of zeros has step 1; one with a value that is not
        finite has a step that is not, so that it stays visible.
    """
    rows, count = values.shape
    blocks = blocks_of(count, block)
    wide = values.to(torch.float32)
    if blocks * block != count:
        wide = torch.nn.functional.pad(wide, (0, blocks * block - count))
    wide = wide.view(rows, blocks, block)
    limit = 1 << (bits - 1)
    steps = wide.abs().amax(-1).div_(limit)
    steps.masked_fill_(steps == 0, 1.0)
    codes = wide.div(steps[..., None]).round_().clamp_(-limit, limit - 1).nan_to_num_(0.0).to(torch.int8)
    flat = codes.view(rows, blocks * block)[:, :count]
    return _packed(flat, bits), steps


def dequantise(codes: Tensor, steps: Tensor, values: int, block: int, bits: Bits) -> Tensor:
    """Rows of so many values, float32 ``(rows, values)``, from what :func:`quantise` gave."""
    whole = _unpacked(codes, values, bits).to(torch.float32)
    of_value = steps.repeat_interleave(block, dim=-1)[:, :values]
    return whole.mul_(of_value)


def steps_of(values: Tensor, block: int, bits: Bits) -> Tensor:
    """The step of each value's block, in the values' shape: what error bounds are made of."""
    _, steps = quantise(values, block, bits)
    return steps.repeat_interleave(block, dim=-1)[:, : values.shape[-1]]


def rounding_bound(values: Tensor, block: int, bits: Bits) -> Tensor:
    """Largest error of each value after one quantisation, in its shape, float32.

    Half a step where the code is not cut, and up to a whole step at the positive end. Float32's own
    rounding adds a millionth of the value.
    """
    steps = steps_of(values, block, bits)
    wide = values.to(torch.float32)
    limit = (1 << (bits - 1)) - 1
    cut = (wide / steps - limit).clamp_min(0.5) * steps
    return cut + wide.abs() * 2.0**-20


def _packed(codes: Tensor, bits: Bits) -> Tensor:
    if bits == 8:
        return codes.contiguous().view(torch.uint8)
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    halves = codes.contiguous().view(torch.uint8).bitwise_and(0x0F)
    return halves[:, 0::2] | (halves[:, 1::2] << 4)


def _unpacked(codes: Tensor, values: int, bits: Bits) -> Tensor:
    if bits == 8:
        return codes.contiguous().view(torch.int8)[:, :values]
    # Moved up to the sign bit and back down, which copies the sign.
    signed = codes.contiguous().view(torch.int8)
    pairs = torch.stack([signed << 4 >> 4, signed >> 4], dim=-1)
    return pairs.view(len(codes), -1)[:, :values]
