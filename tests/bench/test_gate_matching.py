"""What is compared with what: keys, machines, and a reason for all that has no partner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.gate_matching import blocks_of, match_rows
from bench.gate_sources import Source
from tests.bench.gate_rows import THERE, row, samples_of, source

SAMPLES = samples_of(100.0)


def only(baseline: Source, candidate: Source, **options: Any) -> Any:
    """The one match of two sides."""
    (match,) = match_rows(baseline, candidate, **options).matches
    return match


def test_equal_rows_on_equal_machines_are_compared() -> None:
    match = only(source([row(SAMPLES)]), source([row(SAMPLES, run_id="run2")]))
    assert match.verdict is None
    assert [found.run_id for found in (*match.baseline, *match.candidate)] == ["run1", "run2"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"method_version": 2}, "other_method_version"),
        ({"definition": "latency/other-v1"}, "other_definition"),
        ({"unit": "ns"}, "other_unit"),
        ({"method_version": 2, "unit": "ns"}, "other_method_version"),
        ({"case": "other"}, "no_baseline"),
        ({"metric": "other"}, "no_baseline"),
    ],
)
def test_rows_of_another_kind_are_never_compared_and_said(changes: dict[str, Any], code: str) -> None:
    matching = match_rows(
        source([row(SAMPLES)]), source([row(SAMPLES, run_id="run2", **changes)]), across_machines=True
    )
    verdicts = {(match.verdict, match.reason_code) for match in matching.matches}
    missing = {("missing", "vanished")} if code == "no_baseline" else set()
    assert verdicts == {("new", code)} | missing


def test_another_machine_is_not_compared_unless_asked() -> None:
    baseline, candidate = source([row(SAMPLES)], THERE), source([row(SAMPLES, run_id="run2")])
    assert only(baseline, candidate).reason_code == "other_machine"
    asked = match_rows(baseline, candidate, across_machines=True)
    assert [match.verdict for match in asked.matches] == [None]
    assert "compared across machines" in asked.notes[0]


def test_machines_that_nothing_tells_are_not_taken_for_the_same() -> None:
    unknown, known = Source("rows", (row(SAMPLES),)), source([row(SAMPLES, run_id="run2")])
    assert only(unknown, known).reason_code == "unknown_machine"
    assert "the baseline's rows do not tell" in only(unknown, known).message
    assert "the candidate's rows do not tell" in only(known, unknown).message
    assert only(unknown, unknown).reason_code == "unknown_machine"
    assert only(unknown, known, across_machines=True).verdict is None


def test_the_same_machine_is_preferred_to_others_across_machines() -> None:
    both = Source("both", (row(SAMPLES), row(SAMPLES, run_id="run9")), {})
    both = replace(
        both, records={**source([row(SAMPLES)]).records, **source([row(SAMPLES, run_id="run9")], THERE).records}
    )
    match = only(both, source([row(SAMPLES, run_id="run2")]), across_machines=True)
    assert [found.run_id for found in match.baseline] == ["run1"]


@pytest.mark.parametrize("status", ["failed", "timeout", "invalid"])
def test_a_candidate_that_broke_is_failed_even_if_another_run_of_it_did_not(status: Any) -> None:
    broken = row(status=status, reason="rank 1 died\nwith stacks", run_id="run2")
    match = only(source([row(SAMPLES)]), source([broken, row(SAMPLES, run_id="run3")]))
    assert (match.verdict, match.reason_code) == ("failed", f"candidate_{status}")
    assert match.message == f"{status}: rank 1 died"


def test_a_baseline_that_broke_makes_the_case_new() -> None:
    assert only(source([row()]), source([row(SAMPLES, run_id="run2")])).reason_code == "baseline_not_measured"
    match = only(source([row(), row(SAMPLES, run_id="run9")]), source([row(SAMPLES, run_id="run2")]))
    assert match.verdict is None, "a baseline run that has the number is enough"


def test_what_vanished_or_is_skipped_now_is_missing() -> None:
    skipped = row(status="skipped", reason="needs a GPU", run_id="run2")
    assert only(source([row(SAMPLES)]), source([skipped])).reason_code == "skipped_now"
    other = row(SAMPLES, run_id="run2", metric="algbw")
    codes = [match.reason_code for match in match_rows(source([row(SAMPLES)]), source([other])).matches]
    assert codes == ["no_baseline", "vanished"]


def test_what_both_sides_skip_is_counted_and_nobodys_fault() -> None:
    skipped = row(status="skipped", reason="needs a GPU")
    for candidate in ([replace(skipped, run_id="run2")], []):
        matching = match_rows(source([skipped]), source(candidate))
        assert (matching.matches, matching.skipped) == ([], 1)


def test_of_a_case_measured_again_in_a_run_the_last_counts() -> None:
    again = [row(), row(SAMPLES, row_id=1)]
    assert only(source([row(SAMPLES)]), source([replace(found, run_id="run2") for found in again])).verdict is None


def test_runs_keep_their_order_whatever_their_ids_say() -> None:
    """A clock that jumped back gives a later run an earlier id."""
    runs = [row(SAMPLES, run_id=run_id) for run_id in ("run9", "run2", "run5")]
    match = only(source([row(SAMPLES)]), source(runs))
    assert [found.run_id for found in match.candidate] == ["run9", "run2", "run5"]


def test_blocks_are_rounds_or_runs() -> None:
    one = row([1.0, 2.0, 3.0], rounds=[1, 2])
    other = row([4.0, 5.0])
    assert blocks_of([one, other]) == [[1.0], [2.0, 3.0], [4.0, 5.0]]
    assert blocks_of([replace(other, samples=[], value=7.0)]) == [[7.0]], "other tools give a value alone"
