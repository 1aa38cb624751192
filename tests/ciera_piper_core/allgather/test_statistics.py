"""Sums over gathers, and ratios that are no number before the first one."""

from __future__ import annotations

import math

import numpy as np
import torch

from ciera_piper_core.allgather.plan import GatherPlan
from ciera_piper_core.allgather.statistics import CodedSegments, GatherSample, GatherStatistics, SegmentSample

CODED = CodedSegments(("w",), np.array([10]), np.array([5000]), np.array([2568]))
FOUND = np.array([[1, 4, 2000, 30]])
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
    statistics = GatherStatistics(GatherPlan.from_sizes([("w", 2500), ("v", 0)], torch.bfloat16))
    assert math.isnan(statistics.byte_ratio)
    assert list(statistics.segments) == ["w", "v"]
    assert math.isnan(statistics.segments["w"].byte_ratio)
    assert math.isnan(statistics.segments["w"].block_change_rate)


def test_gathers_and_segments_are_summed() -> None:
    statistics = GatherStatistics(GatherPlan.from_sizes([("w", 2500)], torch.bfloat16))
    statistics.add(sample("refresh", sent_bytes=5700))
    statistics.add(sample("coded", parts=((CODED, FOUND),)))
    statistics.add(sample("coded", parts=((CODED, FOUND),), overflowed=True))
    statistics.add_plain(5000, gathers=2)
    assert statistics.gathers == {"coded": 2, "refresh": 1, "plain": 2}
    assert statistics.overflows == 1
    assert (statistics.sent_bytes, statistics.plain_bytes) == (5700 + 2 * 2700 + 10_000, 25_000)
    assert (statistics.encode_ns, statistics.collective_ns, statistics.decode_ns) == (3, 60, 900)
    totals = statistics.segments["w"]
    assert (totals.gathers, totals.symbols, totals.coded_bytes) == (2, 4000, 60)
    assert totals.block_change_rate == 0.4
    assert totals.byte_ratio == 0.52
    assert statistics.last is not None
    assert statistics.last.segments == (SEGMENT,)


def test_pieces_of_a_segment_in_two_stages_are_one_sample() -> None:
    statistics = GatherStatistics(GatherPlan.from_sizes([("v", 100), ("w", 5000)], torch.bfloat16))
    later = CodedSegments(("v", "w"), np.array([1, 10]), np.array([200, 5000]), np.array([132, 2568]))
    whole = sample("coded", parts=((CODED, FOUND), (later, np.array([[1, 0, 0, 0], [0, 6, 3000, 50]]))))
    statistics.add(whole)
    statistics.add(whole)
    assert [one.name for one in whole.segments] == ["w", "v"]
    assert whole.segments[0] == SegmentSample("w", "block", 20, 10, 5000, 80, 2600 + 2632, 10_000)
    totals = statistics.segments
    assert (totals["w"].gathers, totals["w"].symbols, totals["w"].sent_bytes) == (2, 10_000, 2 * 5232)
    assert (totals["v"].gathers, totals["v"].blocks, totals["v"].changed_blocks) == (2, 2, 0)
