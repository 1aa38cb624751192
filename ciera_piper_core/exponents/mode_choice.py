"""Which way of coding is smaller, the exponents or their differences: told from a sample of the changed blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ciera_piper_core.exponents.rans.tables import log2_fixed

if TYPE_CHECKING:
    from ciera_piper_core.exponents.kernels import Kernels
    from ciera_piper_core.exponents.layout import FloatLayout
    from ciera_piper_core.exponents.payload import Coding
    from ciera_piper_core.exponents.workspace import Workspace

SAMPLE_SYMBOLS = 8192
"""Enough for an entropy within a few hundredths of a bit; a histogram of them costs tens of microseconds."""


@dataclass(frozen=True)
class Sampled:
    """Looks at a sample of a segment's changed blocks.

    Attributes:
        kernels: that collect symbols. workspace: for scratch.
        layout: of the values. block: values in a block.
    """

    kernels: Kernels
    workspace: Workspace
    layout: FloatLayout
    block: int

    def smaller_coding(
        self, values: torch.Tensor, changed: torch.Tensor, changed_blocks: int, previous: torch.Tensor
    ) -> Coding:
        """``delta``, unless the exponents have a smaller order-0 entropy than their differences.

        Args:
            values: integers of the value's width.
            changed: uint8 ``[blocks]``, with ``changed_blocks`` ones (at least one).
            previous: uint8, the exponent plane that differences are taken to.
        """
        stride = max(changed_blocks * self.block // SAMPLE_SYMBOLS, 1)
        sampled_blocks = -(-changed_blocks // stride)
        sampled = changed if stride == 1 else _every(changed, stride)
        with self.workspace.borrow(sampled_blocks * self.block) as symbols:
            count = self.kernels.collect(values, self.layout, self.block, sampled, previous, symbols)
            of_differences = regularity(symbols[:count])
            self.kernels.collect(values, self.layout, self.block, sampled, None, symbols)
            return "block" if regularity(symbols[:count]) > of_differences else "delta"


def _every(flags: torch.Tensor, stride: int) -> torch.Tensor:
    """Flags of which only the first and then every so manieth is left."""
    left = torch.zeros_like(flags)
    if flags.device.type == "cpu":
        # NumPy, here and below: these arrays are small, and its calls cost a fraction of torch's.
        left.numpy()[np.flatnonzero(flags.numpy())[::stride]] = 1
    else:
        left[flags.nonzero().flatten()[::stride]] = 1
    return left


def regularity(symbols: torch.Tensor) -> int:
    """Sum of c log2 c over how often each uint8 symbol occurs, in 2**-16: the larger, the smaller their entropy.

    In integers only, so that all backends choose alike.
    """
    counts = np.bincount(symbols.numpy()) if symbols.device.type == "cpu" else torch.bincount(symbols).cpu().numpy()
    return sum(count * log2_fixed(count) for count in counts.tolist() if count)
