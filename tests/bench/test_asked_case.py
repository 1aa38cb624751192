"""Cases are counted as they were asked for, however many rows their metrics make of them."""

from __future__ import annotations

import pytest

from bench.asked_case import asked_case
from bench.suite import Case
from suites.migration import MigrationSuite


def test_rows_of_one_case_are_of_one_case() -> None:
    cases = list(MigrationSuite().cases("quick", {}))
    rows = {metric.case_of(case).id for case in cases for metric in MigrationSuite.metrics}
    assert len(rows) == 3 * len(cases)
    assert {asked_case("migration", text) for text in rows} == {case.id for case in cases}


@pytest.mark.parametrize(
    ("suite", "case", "asked"),
    [
        ("memory", {"kernel": "copy", "range": "a,b", "threads": 2}, {"kernel": "copy", "threads": 2}),
        ("end_to_end", {"reference": "fsdp", "system": "piper:pp=2"}, {"system": "piper:pp=2"}),
        ("end_to_end", {"bound": "low", "lab": "nodes=2,rate=1gbit"}, {"lab": "nodes=2,rate=1gbit"}),
        # Whose parameters they are is not known.
        ("of another machine", {"part": 1, "size": 2}, {"part": 1, "size": 2}),
    ],
)
def test_parameters_of_metrics_are_left_out(
    suite: str, case: dict[str, str | int], asked: dict[str, str | int]
) -> None:
    assert asked_case(suite, Case(case).id) == Case(asked).id
