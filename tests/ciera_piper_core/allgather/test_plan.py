"""Plans: segments without gaps, selections by name, digests that tell plans apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan, Segment


def plan(*sizes: int, dtype: torch.dtype = torch.bfloat16, name: str = "layer") -> GatherPlan:
    return GatherPlan.from_sizes([(f"p{index}", size) for index, size in enumerate(sizes)], dtype, name=name)


def test_segments_lie_one_after_the_other() -> None:
    made = plan(5, 0, 7)
    assert [segment.offset for segment in made.segments] == [0, 5, 5]
    assert made.values == 12
    assert made.shard_bytes == 24
    assert [made.segment_bytes(segment) for segment in made.segments] == [10, 0, 14]


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((Segment("a", 0, 4), Segment("b", 5, 1)), "'b' begins at value 5, but those before it end at 4"),
        ((Segment("a", 1, 4),), "'a' begins at value 1"),
        ((Segment("a", 0, 4), Segment("a", 4, 4)), "two segments are named 'a'"),
    ],
)
def test_gaps_overlaps_and_twins_are_refused(segments: tuple[Segment, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatherPlan(segments, torch.bfloat16)


@pytest.mark.parametrize(("name", "offset", "values"), [("", 0, 1), ("a", -1, 1), ("a", 0, -1)])
def test_impossible_segments_are_refused(name: str, offset: int, values: int) -> None:
    with pytest.raises(ValueError, match=r"needs a name|must be 0 or more"):
        Segment(name, offset, values)


def test_coded_segments_need_a_known_type_but_plain_ones_do_not() -> None:
    with pytest.raises(ValueError, match=r"exponents of torch\.int64 cannot be coded"):
        plan(4, dtype=torch.int64)
    plain = GatherPlan((Segment("a", 0, 4, compressed=False),), torch.int64)
    assert plain.shard_bytes == 32


def test_a_selection_codes_exactly_what_it_names() -> None:
    made = plan(3, 4, 5).with_selection(["p2", "p0"])
    assert [segment.name for segment in made.selected] == ["p0", "p2"]
    assert made.with_selection(["p1"]).selected == (Segment("p1", 3, 4),)
    assert not made.with_selection([]).selected
    with pytest.raises(ValueError, match="no segment is named 'p7', 'p9'"):
        made.with_selection(["p1", "p9", "p7"])


def test_the_shared_digest_ignores_sizes_alone() -> None:
    base = plan(3, 4)
    assert base.shared_digest == plan(8, 1).shared_digest
    assert base.digest != plan(8, 1).digest
    assert len(base.digest) == 8
    others = [
        plan(3, 4, dtype=torch.float16),
        plan(3, 4, name="another"),
        plan(3, 4, 0),
        base.with_selection(["p0"]),
        GatherPlan(base.segments, base.dtype, CodingSettings("block"), base.name),
        GatherPlan(base.segments, base.dtype, CodingSettings(block=64), base.name),
        GatherPlan((Segment("p0", 0, 3, "attention"), Segment("p1", 3, 4)), base.dtype, base.settings, base.name),
    ]
    assert len({one.shared_digest for one in [base, *others]}) == len(others) + 1


def test_a_single_segment_is_the_whole_shard() -> None:
    made = GatherPlan.single(9, torch.float32, CodingSettings("delta"), "x")
    assert made.segments == (Segment("x", 0, 9),)
    assert made.settings.mode == "delta"


@pytest.mark.parametrize("values", [4.0, np.int64(4), "4", None])
def test_what_is_no_whole_number_is_refused_before_ranks_meet(values: Any) -> None:
    with pytest.raises(ValueError, match=r"segment 'shard': offset 0 and values .* must be whole numbers"):
        GatherPlan.single(values, torch.bfloat16)


def test_a_mode_is_no_settings() -> None:
    with pytest.raises(ValueError, match=r"settings are CodingSettings\(mode, block\), not 'delta'"):
        GatherPlan.single(4, torch.bfloat16, "delta")  # type: ignore[arg-type]
