"""Numbers that a file has several times become one row with all samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.importers.contents import Contents
from bench.importers.definitions import OTHER_VALUE
from bench.importers.pooling import pool


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e9, 1e9)), min_size=1, max_size=20))
def test_every_number_is_a_sample_and_rounds_add_up(found: list[tuple[int, float]]) -> None:
    contents = Contents("tool")
    for launch, value in sorted(found):
        contents.add("m", OTHER_VALUE, {"p": 1}, value, launch=launch)
    (row,) = pool(contents)
    assert sorted(row.samples) == sorted(value for _, value in found)
    assert row.n == len(found)
    assert row.rounds == [] or sum(row.rounds) == row.n
    assert (len(row.rounds) or 1) == len({launch for launch, _ in found})
    row.to_json()


def test_one_failure_fails_the_row_and_others_stay_apart() -> None:
    contents = Contents("tool")
    contents.add("m", OTHER_VALUE, {"p": 1}, 1.0, wrong=0)
    contents.add("m", OTHER_VALUE, {"p": 1}, None, status="failed", reason="bad", wrong=2)
    contents.add("m", OTHER_VALUE, {"p": 2}, 3.0)
    first, second = pool(contents)
    assert (first.status, first.reason, first.value, first.wrong) == ("failed", "bad (1 of 2 repetitions)", None, 2)
    assert (second.status, second.value) == ("ok", 3.0)
