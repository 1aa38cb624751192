"""Where the parts of payloads lie: aligned, without overlap, with the same first collective for uneven ranks."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.allgather.agreement import Agreement, PayloadShape
from ciera_piper_core.allgather.plan import GatherPlan, Segment
from ciera_piper_core.exponents.payload import HEADER_BYTES, RECORD_BYTES

SEGMENTS = st.lists(st.tuples(st.integers(0, 3000), st.booleans()), min_size=1, max_size=6)


def plan_of(segments: list[tuple[int, bool]]) -> GatherPlan:
    made, offset = [], 0
    for index, (values, compressed) in enumerate(segments):
        made.append(Segment(f"p{index}", offset, values, compressed=compressed))
        offset += values
    return GatherPlan(tuple(made), torch.bfloat16)


def bound(values: int) -> int:
    return values + 21 if values else 0


@given(SEGMENTS)
def test_parts_are_aligned_and_follow_one_another(segments: list[tuple[int, bool]]) -> None:
    plan = plan_of(segments)
    shape = PayloadShape.of(plan, bound)
    spans = [(0, HEADER_BYTES + RECORD_BYTES * len(plan.selected))]
    for one in shape.coded:
        assert one.area.rest_bytes == one.segment.values
        spans.append((one.fixed_offset, one.fixed_offset + one.area.size))
    for segment, offset in shape.plain:
        spans.append((offset, offset + 2 * segment.values))
    spans.sort()
    for (_, end), (begin, _) in pairwise(spans):
        assert end <= begin < end + 16
    assert all(begin % 16 == 0 for begin, _ in spans)
    assert spans[-1][1] <= shape.fixed_bytes < spans[-1][1] + 16
    assert shape.variable_bound % 16 == 0
    assert shape.places.payload_bytes == shape.fixed_bytes + shape.variable_bound
    assert [(one.first, one.offset) for one, _ in shape.places.coded] == [
        (one.segment.offset, one.fixed_offset) for one in shape.coded
    ]
    assert [(one.first, one.values) for one in shape.places.segments if one.values] == [
        (segment.offset, segment.values) for segment in plan.segments if segment.values
    ]
    assert shape.variable_bound >= sum(bound(segment.values) for segment in plan.selected)


@given(st.lists(SEGMENTS, min_size=1, max_size=4).filter(lambda ranks: len({len(one) for one in ranks}) == 1))
def test_what_has_room_in_every_ranks_payload_has_room_in_the_collective(ranks: list[list[tuple[int, bool]]]) -> None:
    plans = tuple(plan_of(one) for one in ranks)
    starts = tuple(sum(plan.values for plan in plans[:rank]) for rank in range(len(plans)))
    agreement = Agreement(plans, tuple(PayloadShape.of(plan, bound) for plan in plans), 1, 1, starts)
    assert agreement.fixed_bytes % 64 == agreement.most_bytes % 64 == 0
    for rank, shape in enumerate(agreement.shapes):
        for variable in (0, min(16, shape.variable_bound), shape.variable_bound):
            need = agreement.need(rank, variable)
            assert 0 <= need <= agreement.room_bytes
            assert agreement.room(rank, agreement.fixed_bytes + need) >= variable
        assert agreement.room(rank, agreement.fixed_bytes) % 16 == 0
    out = torch.arange(agreement.values)
    assert torch.equal(torch.cat([agreement.of_rank(out, rank) for rank in range(len(plans))]), out)
    assert agreement.dense == (len({plan.values for plan in plans}) == 1)
