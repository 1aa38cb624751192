"""What a model's gathers carry: shards, how many of their blocks change, and what the changes code to.

It comes from a recorded trace (``change_trace``), or from assumed rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.payload import aligned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.exponents.layout import FloatLayout

    Array = NDArray[np.float64]

Mode = Literal["block", "delta", "auto"]
MODES: tuple[Mode, ...] = ("block", "delta", "auto")
HASH_BYTES = 32
"""Of a block: 128 bits, committed and new."""

EXPONENT_ENTROPY_BITS = 2.6
"""Of an exponent of weights that are near to Gaussian (2.55), with what a coder adds."""

CODER_OVERHEAD = 1.02
"""Coded size over entropy that a coder may need at most."""

LEAST_CODED_BITS = 0.01
"""A coder's least size of a symbol: p = 4065/4096 and a share of states and tables."""


@dataclass(frozen=True, eq=False)
class ShardTraffic:
    """One parameter's shard in one gather after the other.

    Attributes:
        name: of the parameter. category: as reports group it.
        values: in the shard (of the rank whose payload is fullest).
        changed: share of its blocks that changed, one a gather.
        coded_bytes: that the changes took, one a gather.

    Raises:
        ValueError: a share outside 0 to 1, bytes below 0, or not as many of one as of the other.
    """

    name: str
    category: str
    values: int
    changed: Array
    coded_bytes: Array

    def __post_init__(self) -> None:
        if self.values < 0:
            raise ValueError(f"shard {self.name!r} has {self.values} values")
        if self.changed.ndim != 1 or self.changed.shape != self.coded_bytes.shape or not self.changed.size:
            raise ValueError(
                f"shard {self.name!r} needs one share and one size a gather, at least one gather; it has"
                f" {self.changed.shape} and {self.coded_bytes.shape}"
            )
        # Written so that NaN is refused too.
        if not ((self.changed >= 0) & (self.changed <= 1)).all():
            raise ValueError(f"shard {self.name!r}: shares of changed blocks must be from 0 to 1")
        if not ((self.coded_bytes >= 0) & np.isfinite(self.coded_bytes)).all():
            raise ValueError(f"shard {self.name!r}: coded bytes must be 0 or more")


@dataclass(frozen=True, eq=False)
class GatherTraffic:
    """One collective: the shards that travel together.

    Attributes:
        name: of the group of parameters.
        layout: of its values. block: values of a block. mode: how exponents are coded.
        shards: at least one; all have seen as many gathers.

    Raises:
        ValueError: no shard, shards of different lengths, an unknown mode or block.
    """

    name: str
    layout: FloatLayout
    block: int
    mode: Mode
    shards: tuple[ShardTraffic, ...]

    def __post_init__(self) -> None:
        if self.block not in BLOCKS:
            raise ValueError(
                f"gather {self.name!r}: a block has {', '.join(map(str, BLOCKS))} values, not {self.block}"
            )
        if self.mode not in MODES:
            raise ValueError(f"gather {self.name!r}: the mode is one of {', '.join(MODES)}, not {self.mode!r}")
        lengths = {shard.changed.size for shard in self.shards}
        if len(lengths) != 1:
            raise ValueError(f"gather {self.name!r}: its shards have seen {sorted(lengths)} gathers, not all the same")

    @property
    def gathers(self) -> int:
        """How many gathers it has seen."""
        return self.shards[0].changed.size

    def plain_bytes(self, shard: ShardTraffic) -> int:
        """S: bytes of the shard's values."""
        return shard.values * self.layout.value_bytes

    def blocks(self, shard: ShardTraffic) -> int:
        """Blocks of the shard; the last may be short."""
        return -(-shard.values // self.block)

    def fixed_bytes(self, shard: ShardTraffic) -> int:
        """S_sm + S_bm: sign and mantissa, and the bitmap, each aligned."""
        return aligned(self.layout.rest_bytes(shard.values)) + aligned(-(-self.blocks(shard) // 8))

    def cache_bytes(self, shard: ShardTraffic, world: int) -> int:
        """Memory that a rank keeps for the shard: the other ranks' exponents (M = (W - 1) S_e) and its own state.

        Its own state is the exponents in modes delta and auto, else the hashes of the blocks.
        """
        exponents = self.layout.exponent_bytes(shard.values)
        own = self.blocks(shard) * HASH_BYTES if self.mode == "block" else exponents
        return (world - 1) * exponents + own


def assumed_shard(
    name: str,
    category: str,
    values: int,
    layout: FloatLayout,
    block: int,
    mode: Mode,
    element_rate: float,
    block_rate: float | None = None,
    entropy_bits: float = EXPONENT_ENTROPY_BITS,
    unchanged_gathers: int = 0,
) -> ShardTraffic:
    """Traffic of a shard of which only rates are known: one gather that finds changes, and some that find none.

    Args:
        element_rate: share of values whose exponent changed since the last gather.
        block_rate: share of blocks in which one changed; None for changes that fall anywhere alike.
        entropy_bits: of an exponent.
        unchanged_gathers: that follow the one with changes.

    Raises:
        ValueError: a rate outside 0 to 1.
    """
    for what, rate in (("element", element_rate), ("block", 0.0 if block_rate is None else block_rate)):
        if not 0 <= rate <= 1:
            raise ValueError(f"shard {name!r}: the {what} change rate must be from 0 to 1, not {rate}")
    in_block = min(block, max(values, 1))
    spread = 1.0 - (1.0 - element_rate) ** in_block
    changed = spread if block_rate is None else max(block_rate, element_rate)
    inside = min(element_rate / changed, 1.0) if changed else 0.0
    most = float(layout.exponent_bits)
    bits = {
        "block": min(most, entropy_bits * CODER_OVERHEAD),
        "delta": min(most, max(LEAST_CODED_BITS, _difference_bits(inside, entropy_bits) * CODER_OVERHEAD)),
    }
    each = min(bits.values()) if mode == "auto" else bits[mode]
    coded = changed * values * each / 8
    still = [0.0] * unchanged_gathers
    return ShardTraffic(name, category, values, np.array([changed, *still]), np.array([coded, *still]))


def _difference_bits(share: float, entropy_bits: float) -> float:
    """Of a value's difference, if this share of values differ: whether it does, and by what.

    Few changes are steps up or down by one (1 bit); where everything changes, the weights are new ones.
    """
    return _binary_entropy(share) + share * (1.0 + share * max(entropy_bits - 1.0, 0.0))


def _binary_entropy(share: float) -> float:
    # Rounding may bring a share of changes to a little more than all.
    if not 0 < share < 1:
        return 0.0
    return float(-share * np.log2(share) - (1 - share) * np.log2(1 - share))
