"""Sums over gathers, and ratios that are no number before the first one."""

from __future__ import annotations

import math

import torch

from ciera_piper_core.allgather.plan import GatherPlan
from ciera_piper_core.allgather.statistics import GatherSample, GatherStatistics, SegmentSample

SEGMENT = SegmentSample(
    "w", "delta", blocks=10, changed_blocks=4, symbols=2000, coded_bytes=30, sent_bytes=2600, plain_bytes=5000
)


def sample(kind: str, **changes: object) -> GatherSample:
    known: dict[str, object] = {
        "attempt": 3,
        "kind": kind,
        "overflowed": False,
        "sent_bytes": 2700,
        "plain_bytes": 5000,
        "encode_ns": 1,
        "collective_ns": 20,
        "decode_ns": 300,
    }
    return GatherSample(**{**known, **changes})  # type: ignore[arg-type]


def test_nothing_gathered_is_no_ratio() -> None:
    statistics = GatherStatistics.of_plan(GatherPlan.from_sizes([("w", 2500), ("v", 0)], torch.bfloat16))
    assert math.isnan(statistics.byte_ratio)
    assert list(statistics.segments) == ["w", "v"]
    assert math.isnan(statistics.segments["w"].byte_ratio)
    assert math.isnan(statistics.segments["w"].block_change_rate)


def test_gathers_and_segments_are_summed() -> None:
    statistics = GatherStatistics.of_plan(GatherPlan.from_sizes([("w", 2500)], torch.bfloat16))
    statistics.add(sample("refresh", sent_bytes=5700))
    statistics.add(sample("coded", segments=(SEGMENT,)))
    statistics.add(sample("coded", segments=(SEGMENT,), overflowed=True))
    statistics.add_plain(5000, gathers=2)
    assert statistics.gathers == {"coded": 2, "refresh": 1, "plain": 2}
    assert statistics.overflows == 1
    assert (statistics.sent_bytes, statistics.plain_bytes) == (5700 + 2 * 2700 + 10_000, 25_000)
    assert (statistics.encode_ns, statistics.collective_ns, statistics.decode_ns) == (3, 60, 900)
    totals = statistics.segments["w"]
    assert (totals.gathers, totals.symbols, totals.coded_bytes) == (2, 4000, 60)
    assert totals.block_change_rate == 0.4
    assert totals.byte_ratio == 0.52
    assert statistics.last == sample("coded", segments=(SEGMENT,), overflowed=True)
