"""Made-up Comm curves, kernel times and gathers whose gain can be computed by hand, for the tests of the gain model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.allgather.comm import Comm
from ciera_piper_core.allgather.gain import GainModel
from ciera_piper_core.allgather.kernel_times import KernelTimes, StageTimes
from ciera_piper_core.allgather.traffic import GatherTraffic, Mode, ShardTraffic
from ciera_piper_core.exponents.layout import BF16, FloatLayout
from ciera_piper_core.platforms.tables import SecondsCurve

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = 0.25e9
"""Bytes a rank a second of a slow network, on which compressing pays."""

SIZES = [2.0**exponent for exponent in range(4, 31)]


def line(bytes_s: float, seconds: float = 0.0) -> SecondsCurve:
    """A curve at a constant rate, after a fixed cost."""
    return SecondsCurve.from_points([(size, seconds + size / bytes_s) for size in SIZES])


def comm(bytes_s: float, seconds: float = 0.0, ranks: int = 4) -> Comm:
    """A gather of so many bytes a rank a second."""
    return Comm.from_points([(size, seconds + size / bytes_s) for size in SIZES], ranks, 1, "made up")


def side(bytes_s: float, sparse_bytes_s: float | None = None, dense_bytes_s: float | None = None) -> StageTimes:
    """Times of one side; changed blocks cost nothing more unless rates are given."""
    sparse = line(sparse_bytes_s or bytes_s)
    return StageTimes(line(bytes_s), sparse, line(dense_bytes_s or sparse_bytes_s or bytes_s), 0.0, 0.5)


def kernels(encode: float = 1e10, decode: float = 1e10, copy: float = 1e12, beyond: float | None = 1e-9) -> KernelTimes:
    """Kernels at constant rates."""
    fixed = None if beyond is None else SecondsCurve.from_points([(1.0, beyond), (2.0**31, beyond)])
    return KernelTimes(side(encode), side(decode), line(copy), fixed, "made up")


def model(bytes_s: float = RATE, margin: float = 0.0, ranks: int = 4, **options: Any) -> GainModel:
    """A model of linear curves; other options are those of ``kernels``."""
    return GainModel(comm(bytes_s, ranks=ranks), kernels(**options), margin=margin)


def shard(
    name: str, values: int, changed: Sequence[float] = (0.0,), coded: Sequence[float] = (0.0,), category: str = "other"
) -> ShardTraffic:
    """A shard of known traffic."""
    return ShardTraffic(name, category, values, np.array(changed, dtype=float), np.array(coded, dtype=float))


def gather(
    *shards: ShardTraffic, name: str = "layer", layout: FloatLayout = BF16, block: int = 512, mode: Mode = "auto"
) -> GatherTraffic:
    """One collective of these shards."""
    return GatherTraffic(name, layout, block, mode, shards)
