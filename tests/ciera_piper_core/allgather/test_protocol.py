"""What follows from the headers: the same on every rank, and named ranks where they do not fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ciera_piper_core.allgather.errors import GatherMismatchError
from ciera_piper_core.allgather.protocol import described, grouped, judge
from ciera_piper_core.exponents.payload import PayloadHeader

HEADER = PayloadHeader(
    epoch=3, sequence=7, plan_digest=99, attempt=12, capacity_bytes=64, variable_bytes=48, coder_code=1
)


def test_headers_that_agree_ask_for_decoding() -> None:
    verdict = judge([HEADER] * 3, "g")
    assert not verdict.refresh
    assert verdict.remainder_bytes == 0


def test_the_largest_overflow_is_fetched_by_all() -> None:
    headers = [HEADER, replace(HEADER, variable_bytes=112), replace(HEADER, capacity_bytes=128, variable_bytes=160)]
    assert judge(headers, "g").remainder_bytes == 48


@pytest.mark.parametrize(
    "other",
    [replace(HEADER, refresh_wanted=True), replace(HEADER, sequence=6), replace(HEADER, epoch=2)],
)
def test_one_rank_without_the_base_makes_all_refresh(other: PayloadHeader) -> None:
    overflowing = replace(HEADER, variable_bytes=640)
    verdict = judge([overflowing, HEADER, other], "g")
    assert verdict.refresh
    assert verdict.remainder_bytes == 0
    assert verdict.next_epoch == 4


def test_the_epoch_after_the_last_is_the_first() -> None:
    assert judge([replace(HEADER, epoch=2**32 - 1, refresh_wanted=True)], "g").next_epoch == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(HEADER, plan_digest=5), r"the plan \(its digest\): rank 0, 2: 0+63; rank 1: 0+5;"),
        (replace(HEADER, attempt=13), "number of gathers so far: rank 0, 2: 12; rank 1: 13"),
        (replace(HEADER, coder_code=2), "the coder: rank 0, 2: 1; rank 1: 2"),
    ],
)
def test_ranks_that_gather_different_things_are_named(other: PayloadHeader, message: str) -> None:
    with pytest.raises(GatherMismatchError, match=message):
        judge([HEADER, other, HEADER], "g")


def test_groups_keep_the_order_of_ranks() -> None:
    assert described(grouped(["b", "a", "b"], str)) == "rank 0, 2: b; rank 1: a"
