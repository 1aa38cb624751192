"""Values and symbols that the tests of the exponent codec share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ciera_piper_core.exponents.layout import LAYOUTS

if TYPE_CHECKING:
    from ciera_piper_core.exponents.layout import FloatLayout

IDS = [str(layout.dtype).removeprefix("torch.") for layout in LAYOUTS]
"""Names of the layouts, for parametrized tests."""


def every_pattern(layout: FloatLayout) -> torch.Tensor:
    """Every pattern of a 16-bit type; of fp32 every pattern of the upper 16 bits, with changing lower ones."""
    upper = torch.arange(2**16, dtype=torch.int64)
    if layout.value_bytes == 2:
        return upper.to(torch.int16)
    return ((upper << 16) | (upper * 40503 & 0xFFFF)).to(torch.int32)


def random_bits(layout: FloatLayout, values: int, seed: int = 0) -> torch.Tensor:
    """Uniform bits: NaNs, infinities and subnormals among them."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-(2**31), 2**31, (values,), dtype=torch.int64, generator=generator)
    return whole.to(layout.bits_dtype)


def weights(layout: FloatLayout, values: int, seed: int = 0) -> torch.Tensor:
    """N(0, 0.02), as weights are, as integers of the value's width."""
    generator = torch.Generator().manual_seed(seed)
    return layout.bits((torch.randn(values, generator=generator) * 0.02).to(layout.dtype))


def stepped(bits: torch.Tensor, layout: FloatLayout, rate: float, seed: int = 0) -> torch.Tensor:
    """The values after a step in which about this share of them doubled or halved."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(bits.numel(), generator=generator) < rate
    doubled = torch.rand(bits.numel(), generator=generator) < 0.5
    factor = torch.where(chosen, torch.where(doubled, 2.0, 0.5), 1.0)
    return layout.bits((bits.view(layout.dtype).float() * factor).to(layout.dtype))


def entropy_bytes(symbols: torch.Tensor) -> float:
    """Order-0 entropy of all the symbols together, in bytes."""
    counts = torch.bincount(symbols.long(), minlength=256).double()
    shares = counts[counts > 0] / symbols.numel()
    return float(-(shares * shares.log2()).sum()) * symbols.numel() / 8
