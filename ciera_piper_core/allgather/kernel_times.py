"""How long a rank's kernels work on a segment: from calibrated points, or from a profile's codec rows.

A segment's time depends on its size, on how many blocks changed, and on how densely their symbols
code. Each side (encode, decode) therefore has three curves against the segment's plain bytes:
nothing changed; every block changed with few differences to code; every block changed with symbols
that code to much. Times in between are blends of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.exponents.layout import LAYOUTS
from ciera_piper_core.platforms.tables import SecondsCurve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Row = Mapping[str, Any]

STAGES = ("split_hash", "merge", "encode", "decode")
"""Codec rows that a gain needs; with ``split`` it would count the split twice."""

WEIGHTS = ("real", "trained", "gaussian")
"""Data of codec rows that stands for a model's exponents, by preference."""

DIFFERENCES = "delta"
"""Data of codec rows that stands for exponents' differences."""

USUAL_RATIO = {"dense": 0.32, "sparse": 0.01}
"""Coded bytes over exponent bytes: of trained weights (2.55 bits of 8), of few differences; where rows do not say."""


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one side for a segment, against its plain bytes.

    Attributes:
        unchanged: nothing changed.
        sparse: every block changed, and its symbols code to ``sparse_ratio`` of their exponent bytes.
        dense: likewise to ``dense_ratio``; never less than ``sparse_ratio``.
    """

    unchanged: SecondsCurve
    sparse: SecondsCurve
    dense: SecondsCurve
    sparse_ratio: float
    dense_ratio: float

    def __post_init__(self) -> None:
        if not 0 <= self.sparse_ratio <= self.dense_ratio:
            raise ValueError(
                f"the sparse ratio must be from 0 to the dense one, not {self.sparse_ratio} and {self.dense_ratio}"
            )

    def seconds(self, plain_bytes: ArrayLike, changed: ArrayLike, coded_ratio: ArrayLike) -> Array:
        """Seconds for segments of ``plain_bytes`` (above 0), broadcast with the others.

        Args:
            changed: share of their blocks that changed, 0 to 1.
            coded_ratio: coded bytes over exponent bytes of the changed blocks.
        """
        still = self.unchanged.seconds_at(plain_bytes)
        sparse = np.maximum(self.sparse.seconds_at(plain_bytes) - still, 0.0)
        dense = np.maximum(self.dense.seconds_at(plain_bytes) - still, sparse)
        span = self.dense_ratio - self.sparse_ratio
        ratio = np.asarray(coded_ratio, dtype=np.float64)
        weight = np.clip((ratio - self.sparse_ratio) / span, 0.0, 1.0) if span > 0 else np.ones_like(ratio)
        return np.asarray(still + np.asarray(changed) * (sparse + weight * (dense - sparse)))

    def scaled(self, factor: float) -> StageTimes:
        """The same with all seconds times ``factor``."""
        return StageTimes(
            self.unchanged.scaled(factor),
            self.sparse.scaled(factor),
            self.dense.scaled(factor),
            self.sparse_ratio,
            self.dense_ratio,
        )


@dataclass(frozen=True)
class KernelTimes:
    """What compression costs a rank.

    Attributes:
        encode: split, hash, compare, collect and code of its own segment.
        decode: decode, apply, merge and verify of one remote segment.
        copy: seconds against bytes that are copied once.
        beyond: seconds of a compressed gather, against its plain bytes a rank, that neither the smaller payload's
            gather nor kernels explain; None where nobody measured that.
        source: where it is from, for people.
    """

    encode: StageTimes
    decode: StageTimes
    copy: SecondsCurve
    beyond: SecondsCurve | None
    source: str

    def beyond_seconds(self, plain_bytes: float) -> float:
        """Of one compressed gather of so many plain bytes a rank; 0 where nobody measured that."""
        return 0.0 if self.beyond is None else float(self.beyond.seconds_at(max(plain_bytes, 1.0)))

    def note(self, plain_bytes: ArrayLike) -> str:
        """How far segments lie outside the measured sizes; empty if they do not."""
        curve = self.encode.unchanged
        outside = ~curve.covers(plain_bytes)
        if not outside.any():
            return ""
        return (
            f"kernel times are extrapolated for {int(outside.sum())} of {outside.size} segment(s): measured from"
            f" {curve.sizes[0]:,.0f} to {curve.sizes[-1]:,.0f} bytes"
        )


def codec_kernel_times(
    rows: Iterable[Row],
    dtype: str,
    backend: str | None = None,
    isa: str | None = None,
    threads: int | None = None,
    sharing: float = 1.0,
) -> KernelTimes:
    """Kernel times from the ``codec`` rows of a platform profile.

    The time of a side is the sum of its stages: ``split_hash``, then ``encode`` of the changed
    symbols; ``decode``, then ``merge``. Collecting and applying symbols have no row. Symbols that code
    to much are measured on weights, few differences on data ``delta``; without rows of that, they
    count as costly as weights.

    Args:
        rows: of the section; parameters ``stage backend isa dtype bytes threads data``, and
            ``throughput`` in GB/s of the bytes of each stage.
        dtype: of the values: ``bfloat16``, ``float16`` or ``float32``.
        backend, isa: None for the fastest that has all stages.
        threads: None for the fewest measured.
        sharing: ranks that compute on the cores of one, where the rows had them alone.

    Raises:
        ValueError: a stage has no row; the message says which, and what to run.
    """
    usable = [row for row in rows if row["params"].get("dtype") == dtype and _rate(row) > 0]
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in usable:
        params = row["params"]
        key = str(params.get("backend", "")), str(params.get("isa", "")), int(params.get("threads", 1))
        groups.setdefault(key, []).append(row)
    wanted = {
        key: group
        for key, group in groups.items()
        if backend in (None, key[0])
        and isa in (None, key[1])
        and threads in (None, key[2])
        and all(_of_mix(group, stage, "dense") for stage in STAGES)
    }
    if not wanted:
        known = sorted({(key[0], key[1], key[2]) for key in groups})
        listed = ", ".join(f"{name} {level} with {count} thread(s)" for name, level, count in known) or "none"
        asked = " ".join(str(each) for each in (backend, isa, f"{threads} threads" if threads else None) if each)
        raise ValueError(
            f"the profile has no codec rows of {dtype}{' ' + asked if asked else ''} for all of"
            f" {', '.join(STAGES)} (it has: {listed}); run `bench characterize` with the suite codec"
        )
    fewest = min(key[2] for key in wanted)
    fits = {key: group for key, group in wanted.items() if key[2] == fewest}
    key, group = min(fits.items(), key=lambda entry: _whole_seconds(entry[1]))
    layout = next(layout for layout in LAYOUTS if str(layout.dtype) == f"torch.{dtype}")
    share = layout.exponent_bits / (8 * layout.value_bytes)
    ratios = {mix: _coded_ratio(group, mix) for mix in USUAL_RATIO}
    ratios["sparse"] = min(ratios.values())
    merge = _stage_curve(group, "merge")
    whole = {"encode": _stage_curve(group, "split_hash"), "decode": merge}
    sides = {
        stage: StageTimes(
            unchanged=pass_over,
            sparse=_side(pass_over, _stage_curve(group, stage, "sparse"), share),
            dense=_side(pass_over, _stage_curve(group, stage, "dense"), share),
            sparse_ratio=ratios["sparse"],
            dense_ratio=ratios["dense"],
        ).scaled(sharing)
        for stage, pass_over in whole.items()
    }
    shared = f", times {sharing:g} for ranks that share cores" if sharing > 1 else ""
    source = f"codec rows: {key[0]} {key[1]}, {key[2]} thread(s), {dtype}{shared}"
    # A merge writes and reads as many bytes as a copy does.
    return KernelTimes(sides["encode"], sides["decode"], merge.scaled(sharing), None, source)


def _side(whole: SecondsCurve, coding: SecondsCurve, exponent_share: float) -> SecondsCurve:
    """One pass over a segment's bytes, then coding of its exponent bytes, as if all of them changed."""
    sizes = np.unique(np.concatenate([whole.sizes, coding.sizes / exponent_share]))
    both = whole.seconds_at(sizes) + coding.seconds_at(sizes * exponent_share)
    return SecondsCurve(sizes, np.maximum.accumulate(both), "proportional")


def _of_mix(rows: Sequence[Row], stage: str, mix: str) -> list[Row]:
    """A stage's rows on the data that stands for a mix; on weights where differences were not measured."""
    mine = [row for row in rows if row["params"]["stage"] == stage]
    wanted = (DIFFERENCES, *WEIGHTS) if mix == "sparse" else WEIGHTS
    for data in wanted:
        if fits := [row for row in mine if row["params"].get("data", WEIGHTS[-1]) == data]:
            return fits
    return []


def _stage_curve(rows: Sequence[Row], stage: str, mix: str = "dense") -> SecondsCurve:
    """Seconds against the stage's bytes."""
    points = [
        (float(row["params"]["bytes"]), float(row["params"]["bytes"]) / (_rate(row) * 1e9))
        for row in _of_mix(rows, stage, mix)
    ]
    return SecondsCurve.from_points(points, below="proportional")


def _coded_ratio(rows: Sequence[Row], mix: str) -> float:
    """Coded bytes over exponent bytes of a mix: of the largest size that was encoded."""
    known = [row for row in _of_mix(rows, "encode", mix) if "coded_ratio" in row["values"]]
    if not known:
        return USUAL_RATIO[mix]
    largest = max(known, key=lambda row: float(row["params"]["bytes"]))
    return float(largest["values"]["coded_ratio"])


def _whole_seconds(rows: Sequence[Row]) -> float:
    """Seconds a byte of all stages at their largest sizes, to tell which backend is fastest."""
    curves = [_stage_curve(rows, stage) for stage in STAGES]
    return float(sum(curve.seconds[-1] / curve.sizes[-1] for curve in curves))


def _rate(row: Row) -> float:
    value = row["values"].get("throughput")
    return float(value) if isinstance(value, (int, float)) else 0.0
