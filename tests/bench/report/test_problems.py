"""Causes of missing numbers, gathered and ordered."""

from __future__ import annotations

from bench.definitions import LATENCY
from bench.report.cases import gather
from bench.report.problems import problems
from tests.bench.report.sample_rows import STACK, row, sample_rows


def test_causes_of_the_sample_failures_first() -> None:
    found = problems(gather(sample_rows()))
    assert [(each.suite, each.status, len(each.cases)) for each in found] == [
        ("collectives", "failed", 1),
        ("collectives", "timeout", 1),
        ("collectives", "invalid", 1),
        ("collectives", "skipped", 173),
        ("collectives", "skipped", 5),
        ("attention", "skipped", 1),
    ]
    assert found[0].summary == "rank 3 was killed by signal 9 in iteration 12"
    case, detail = found[0].cases[0]
    assert detail == STACK
    assert found[0].parameters_of(case) == "op=all_reduce ranks=4 bytes=32MiB nodes=1 scope=loopback"
    assert [each.metrics for each in found if each.metrics] == [("share_of_bound",)]


def test_cases_with_stacks_of_their_own_share_a_cause() -> None:
    rows = [
        row({"ranks": ranks}, "latency", LATENCY, status="failed", reason=f"rank 0 raised\nstack of {ranks}\n")
        for ranks in (2, 4)
    ]
    [problem] = problems(gather(rows))
    assert [detail for _, detail in problem.cases] == ["stack of 2", "stack of 4"]


def test_a_lone_case_is_named_by_all_of_its_parameters() -> None:
    [problem] = problems(gather([row({"ranks": 2, "bytes": 1024}, "latency", LATENCY, status="failed", reason="x")]))
    assert problem.parameters_of(problem.cases[0][0]) == "ranks=2 bytes=1KiB"


def test_nothing_failed() -> None:
    assert problems(gather([row({}, "latency", LATENCY, value=1.0)])) == []
