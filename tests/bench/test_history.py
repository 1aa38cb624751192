"""Histories from a real store: series, gaps, commits, new series, ``--since``, and exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.errors import UsageError
from bench.history import exit_code, read_history
from bench.history_output.as_json import to_dict
from bench.history_output.text import verdict
from bench.history_points import point_error
from bench.history_series import Commit
from bench.store.layout import runs_folder
from bench.store.reader import Store
from tests.bench.history_rows import ABSENT, FAILED, IDENTITY, commit_of, store_run

if TYPE_CHECKING:
    from pathlib import Path

    from bench.history_series import History


def numbers(nights: int, seed: int = 0) -> list[float]:
    return [float(value) for value in 100 * (1 + 0.01 * np.random.default_rng(seed).standard_normal(nights))]


def stepped(store: Path, nights: int = 40, at: int = 25, factor: float = 1.1, better: str = "lower") -> None:
    for night, value in enumerate(numbers(nights)):
        store_run(store, night, {"a": value * (factor if night >= at else 1)}, better=better)


def read(store: Path, *where: str, since: str | None = None) -> History:
    return read_history(Store(store), "latency", where, since=since)


@pytest.mark.parametrize(
    ("factor", "better", "kind", "code"),
    [(1.1, "lower", "regression", 1), (0.9, "lower", "improvement", 0), (0.9, "higher", "regression", 1)],
)
def test_a_step_has_a_kind_and_a_range_of_commits(
    tmp_path: Path, factor: float, better: str, kind: str, code: int
) -> None:
    stepped(tmp_path, factor=factor, better=better)
    history = read(tmp_path)
    ((change,),) = [one.changes for one in history.series]
    assert (change.kind, change.found.status, change.stands) == (kind, "confirmed", True)
    assert change.commits == f"{commit_of(24)[:12]}..{commit_of(25)[:12]}"
    assert exit_code(history) == code


def test_a_suspected_regression_is_inconclusive(tmp_path: Path) -> None:
    stepped(tmp_path, nights=30, at=25)
    assert [change.found.status for one in read(tmp_path).series for change in one.changes] == ["suspected"]
    assert exit_code(read(tmp_path)) == 3


@pytest.mark.parametrize(("better", "kind", "code"), [("lower", "regression", 3), ("higher", "improvement", 0)])
def test_a_drift_for_the_worse_is_inconclusive_while_it_lasts(
    tmp_path: Path, better: str, kind: str, code: int
) -> None:
    for night, value in enumerate(numbers(50)):
        store_run(tmp_path, night, {"a": value * (1 + 0.002 * night)}, better=better)
    history = read(tmp_path)
    (one,) = history.series
    assert one.changes == []
    (slope,) = one.slopes
    assert (slope.kind, slope.stands, slope.found.status) == (kind, True, "confirmed")
    assert slope.found.effect == pytest.approx(0.098, abs=0.02)
    assert exit_code(history) == code
    assert verdict(history)[1] == ("warn" if code else "good")
    (drift,) = to_dict(history)["series"][0]["drifts"]
    assert (drift["first_run_id"], drift["last_run_id"]) == (one.points[0].run_id, one.points[49].run_id)
    assert (drift["kind"], drift["stands"], drift["points"]) == (kind, True, 50)
    # What ended before is not shown; it lasts until now, so it is.
    assert len(read(tmp_path, since="2026-02-10").series[0].slopes) == 1
    # A gap at the end hides nothing, and a later level ends it.
    store_run(tmp_path, 50, {"a": FAILED}, better=better)
    assert read(tmp_path).series[0].slopes[0].stands
    for night, value in enumerate(numbers(20, seed=1), 51):
        store_run(tmp_path, night, {"a": value * 0.8}, better=better)
    (later,) = read(tmp_path).series
    assert not any(found.stands for found in later.slopes)


def test_a_regression_that_was_undone_does_not_stand(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(60)):
        store_run(tmp_path, night, {"a": value * (1.1 if 20 <= night < 40 else 1)})
    history = read(tmp_path)
    assert [(change.kind, change.stands) for change in history.series[0].changes] == [
        ("regression", False),
        ("improvement", True),
    ]
    assert exit_code(history) == 0


def test_failures_and_missing_cases_are_gaps(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(20)):
        a = FAILED if night == 5 else ABSENT if night == 8 else value
        store_run(tmp_path, night, {"a": a, "b": value})
    one = read(tmp_path, "op=a").series[0]
    whole = next(each for each in read(tmp_path).series if each.params["op"] == "a")
    assert [point.status for point in whole.points].count("ok") == 18
    assert (whole.points[5].status, whole.points[5].value, whole.points[5].reason) == ("failed", None, "rank 1 died")
    assert (whole.points[8].status, whole.points[8].value) == ("missing", None)
    assert one.points == whole.points


def test_a_case_that_is_newer_than_the_suite_has_no_gap_before_it(tmp_path: Path) -> None:
    for night in range(6):
        store_run(tmp_path, night, {"a": 1.0, "b": 2.0 if night >= 4 else ABSENT})
    assert [len(one.points) for one in read(tmp_path).series] == [6, 2]


def test_a_newest_run_that_failed_or_lacks_the_case_was_not_measured(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value, "b": value})
    assert exit_code(read(tmp_path)) == 0
    store_run(tmp_path, 20, {"a": FAILED, "b": 100.0})
    assert exit_code(read(tmp_path)) == 4
    store_run(tmp_path, 21, {"a": ABSENT, "b": 100.0})
    assert exit_code(read(tmp_path)) == 4
    store_run(tmp_path, 22, {"a": 100.0, "b": 100.0})
    assert exit_code(read(tmp_path)) == 0


@pytest.mark.parametrize("where", [(), ("op=a",), ("op=a", "bytes=1024")])
def test_a_filter_hides_no_gap(tmp_path: Path, where: tuple[str, ...]) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value})
    store_run(tmp_path, 20, {"other": 100.0})
    history = read(tmp_path, *where)
    assert history.series[0].newest.status == "missing"
    assert exit_code(history) == 4


def test_a_run_with_rows_of_other_metrics_only_is_a_gap(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value})
    store_run(tmp_path, 20, {"a": 1.0}, metric="setup_time")
    assert read(tmp_path).series[0].newest.status == "missing"
    assert exit_code(read(tmp_path)) == 4


def test_a_gap_belongs_to_the_series_in_force(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(40)):
        store_run(tmp_path, night, {"a": value}, method_version=1 if night < 20 else 2)
    store_run(tmp_path, 40, {"b": 1.0}, method_version=2)
    assert [len(one.points) for one in read(tmp_path, "op=a").series] == [20, 21]
    store_run(tmp_path, 41, {"b": 1.0}, method_version=3)
    assert [len(one.points) for one in read(tmp_path, "op=a").series] == [20, 22]


def store_crash(store: Path, night: int, after_header: bytes = b"", header: bytes | None = None) -> str:
    """A run whose writer is gone: what is in its file after the header, or in place of all."""
    run_id = store_run(store, night, {"a": 1.0})
    record = Store(store).record(run_id)
    record.writer = {}
    (runs_folder(store) / f"{run_id}.parquet").unlink()
    content = f"{record.to_json()}\n".encode() + after_header if header is None else header
    (runs_folder(store) / f"{run_id}.jsonl").write_bytes(content)
    return run_id


@pytest.mark.parametrize("where", [(), ("op=a",)])
@pytest.mark.parametrize("after_header", [b"", b'{"run_id": "2026'])
def test_a_run_that_ended_before_its_first_row_is_a_gap(
    tmp_path: Path, where: tuple[str, ...], after_header: bytes
) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value})
    run_id = store_crash(tmp_path, 20, after_header)
    history = read(tmp_path, *where)
    newest = history.series[0].newest
    assert (newest.run_id, newest.status) == (run_id, "missing")
    assert newest.reason == "the run ended before its first row of the suite"
    assert exit_code(history) == 4
    store_run(tmp_path, 21, {"a": 100.0})
    assert [point.status for point in read(tmp_path).series[0].points[-2:]] == ["missing", "ok"]
    assert exit_code(read(tmp_path)) == 0


def test_a_run_of_another_suite_that_ended_early_is_no_gap(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value})
    run_id = store_run(tmp_path, 20, {}, suite="memory")
    assert Store(tmp_path).resolve("latest") == run_id
    assert exit_code(read(tmp_path)) == 0


def test_a_sealed_run_without_a_row_is_a_gap(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value})
    store_run(tmp_path, 20, {})
    assert exit_code(read(tmp_path)) == 4


def test_a_first_run_of_a_new_machine_that_left_no_row_does_not_pass(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value})
    run_id = store_run(tmp_path, 20, {}, identity={**IDENTITY, "torch": "2.14.0"})
    history = read(tmp_path)
    assert (history.lost, exit_code(history)) == (run_id, 4)
    assert verdict(history) == (
        f"1 series judged together; no regression stands; the newest run, {run_id}, left no row.",
        "bad",
    )


@pytest.mark.parametrize("content", [b"", b"\x00\xff\x93random"])
def test_a_file_without_a_header_is_told_and_does_not_pass_as_the_newest(tmp_path: Path, content: bytes) -> None:
    for night, value in enumerate(numbers(20)):
        store_run(tmp_path, night, {"a": value})
    run_id = store_crash(tmp_path, 20, header=content)
    history = read(tmp_path)
    assert [f"{run_id}.jsonl: no header can be read" in note for note in history.notes] == [True]
    assert (history.lost, exit_code(history)) == (run_id, 4)
    store_run(tmp_path, 21, {"a": 100.0})
    later = read(tmp_path)
    assert len(later.notes) == 1
    assert (later.lost, exit_code(later)) == ("", 0)


def test_negative_values_have_one_sign_of_change(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(40)):
        store_run(tmp_path, night, {"a": -value * (0.8 if night >= 20 else 1)})
    (one,) = read(tmp_path).series
    (change,) = one.changes
    assert change.kind == "regression"
    assert change.found.effect == pytest.approx(0.2, abs=0.01)
    assert one.trend == pytest.approx(0.2, abs=0.01)


def test_hostile_values_cannot_act_in_messages(tmp_path: Path) -> None:
    store_run(tmp_path, 0, {"a": 1.0}, params={"k\x1b[31m": "v\x1b]0;x\x07\nnext"})
    for where in ("op=z", "zzz=a", "k\x1b[31m=a"):
        with pytest.raises(UsageError) as caught:
            read(tmp_path, where)
        assert str(caught.value).isprintable()
    store_run(tmp_path, 1, {"a": 1.0}, metric="m\x1b[31m", suite="s\x1b[31m")
    for metric, suite in (("zzz", None), ("latency", "zzz")):
        with pytest.raises(UsageError) as caught:
            read_history(Store(tmp_path), metric, suite=suite)
        assert str(caught.value).isprintable()


def test_what_is_never_judged_does_not_pass(tmp_path: Path) -> None:
    store_run(tmp_path, 0, {"a": 1.0})
    assert exit_code(read(tmp_path)) == 4


def test_method_and_machine_begin_new_series_and_say_why(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(45)):
        version, torch = (1 if night < 15 else 2), ("2.13.0" if night < 30 else "2.14.0")
        store_run(tmp_path, night, {"a": 2 * value if night >= 15 else value}, method_version=version,
                  identity={**IDENTITY, "torch": torch})  # fmt: skip
    history = read(tmp_path)
    assert [len(one.points) for one in history.series] == [15, 15, 15]
    assert [one.changes for one in history.series] == [[], [], []]
    assert [one.superseded for one in history.series] == [True, True, False]
    assert history.series[1].began == "method version 1 became 2"
    assert history.series[2].began == "another machine: torch: '2.13.0' and '2.14.0'"


def test_machines_that_take_turns_both_count(tmp_path: Path) -> None:
    for night, value in enumerate(numbers(60)):
        store_run(tmp_path, night, {"a": value}, identity={**IDENTITY, "kernel": str(night % 2)})
    assert [(len(one.points), one.superseded) for one in read(tmp_path).series] == [(30, False), (30, False)]


def test_since_hides_what_came_before_and_still_judges_by_it(tmp_path: Path) -> None:
    stepped(tmp_path, nights=45, at=30)
    (late,) = read(tmp_path, since="2026-01-20").series
    assert (len(late.shown), len(late.points), len(late.changes)) == (26, 45, 1)
    assert read(tmp_path, since="2026-02-05").series[0].changes == []
    run_id = late.points[30].run_id
    assert len(read(tmp_path, since=run_id).series[0].changes) == 1
    for since in ("2030-01-01", "nonsense"):
        with pytest.raises(UsageError, match="--since"):
            read(tmp_path, since=since)


def test_commits_that_are_the_same_or_unknown_are_said_to_be(tmp_path: Path) -> None:
    for store, git in (("same", {"commit": "a" * 40, "dirty": True}), ("none", {})):
        for night, value in enumerate(numbers(40)):
            store_run(tmp_path / store, night, {"a": value * (1.1 if night >= 25 else 1)}, git=git)
    texts = [read(tmp_path / store).series[0].changes[0].commits for store in ("same", "none")]
    assert texts == ["same commit aaaaaaaaaaaa+", "commits not recorded"]
    assert Commit().text == "unknown"


def test_where_selects_by_value_size_and_wildcard(tmp_path: Path) -> None:
    store_run(tmp_path, 0, {"all_gather": 1.0, "all_reduce": 2.0, "broadcast": 3.0})
    assert len(read(tmp_path, "op=all_*", "bytes=1KiB").series) == 2
    assert len(read(tmp_path, "op=all_gather,broadcast").series) == 2
    for where, message in (
        ("op=ring", "values of op: all_gather, all_reduce, broadcast"),
        ("opp=ring", "did you mean op"),
        ("op", "PARAM"),
    ):
        with pytest.raises(UsageError, match=message):
            read(tmp_path, where)


def test_names_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bench run"):
        read(tmp_path / "empty")
    store_run(tmp_path, 0, {"a": 1.0})
    with pytest.raises(UsageError, match="did you mean latency"):
        read_history(Store(tmp_path), "latencies")
    with pytest.raises(UsageError, match="did you mean collectives"):
        read_history(Store(tmp_path), "latency", suite="collective")


def test_rounds_tell_the_error_of_a_point(tmp_path: Path) -> None:
    store_run(tmp_path, 0, {"a": 100.0}, rounds=(0.9, 1.0, 1.1))
    store_run(tmp_path, 1, {"a": 100.0}, rounds=(0.9, 1.1))
    errors = [point_error(row) for row in Store(tmp_path).rows()]
    assert errors == [pytest.approx(1.2533 * 10 / 3**0.5), None]
    assert read(tmp_path).series[0].points[0].error == errors[0]
