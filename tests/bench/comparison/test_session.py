"""Comparisons with real processes: turns, rows in the store, sides that are killed, hang, or do something else."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from bench.comparison.request import ComparisonRequest, Side
from bench.comparison.session import compare_sides
from bench.comparison.turns import Watcher
from bench.errors import StoreError, UsageError
from bench.store.reader import Store
from bench.store.writer import RunWriter
from tests.bench.comparison.sides_suite import params

if TYPE_CHECKING:
    from pathlib import Path

    from bench.comparison.outcome import Outcome

SUITE = "tests.bench.comparison.sides_suite:SidesSuite"


def side(label: str, world: int = 1, **changes: Any) -> Side:
    return Side(label, params(label, ranks=world, **changes), world)


def compared(folder: Path, *sides: Side, watcher: Watcher | None = None, **changes: Any) -> Outcome:
    request = ComparisonRequest(**{"suite": SUITE, "sides": sides, "reference": "a", "steps": 8, **changes})
    return compare_sides(request, folder, watcher or Watcher(), ["compare"])


def test_a_side_that_sleeps_half_as_long_is_twice_as_fast(tmp_path: Path) -> None:
    found = compared(tmp_path, side("a", 2, milliseconds=20.0), side("b", 2, milliseconds=10.0))
    speedup = found.speedup(found.records[1])
    assert speedup is not None
    assert 1.5 < speedup.value < 2.5
    assert found.exit_code == 0
    rows = [row for row in found.rows if row.metric == "iteration_time"]
    assert [row.status for row in rows] == ["ok", "ok"]
    # A step's own time: neither turns nor barriers are in it.
    assert rows[1].value == pytest.approx(0.010, rel=0.5)
    stored = Store(tmp_path).rows(run_ids=[found.run_id])
    assert [row.to_dict() for row in sorted(stored, key=lambda row: row.row_id)] == [
        row.to_dict() for row in found.rows
    ]


def test_sides_are_predicted_before_their_first_iteration(tmp_path: Path) -> None:
    found = compared(tmp_path, side("a", 2, milliseconds=20.0), side("b", fault="kill in forecast"), profile="mine")
    first, second = found.records
    assert first.forecast is not None
    assert (first.forecast.total, first.forecast.profile) == (pytest.approx(0.022), "mine")
    assert second.forecast is None
    assert second.ending is not None
    stored = {(row.metric, row.params.get("part")): row for row in found.rows if row.params["who"] == "a"}
    assert stored["predicted_time", "total"].value == pytest.approx(0.022)
    assert stored["prediction_error", None].status == "ok"
    unknown = compared(tmp_path, side("a"), profile="nothing").records[0].forecast
    assert unknown is not None
    assert unknown.reason == "its suite predicts nothing"


def test_what_fails_breaks_no_other_side(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        side("a"),
        side("killed", fault="kill in run", fails_at=6),
        side("raised", fault="raise in inspect"),
        side("skipped", fault="skip"),
        side("other", weights="x"),
        side("wrong", error=1e-3, off_from=5),
        side("z"),
    )
    endings = {record.label: record.ending for record in found.records}
    assert {label: ending.status for label, ending in endings.items() if ending} == {
        "killed": "failed",
        "raised": "failed",
        "skipped": "skipped",
        "other": "invalid",
        "wrong": "invalid",
    }
    reasons = {label: ending.reason for label, ending in endings.items() if ending}
    assert "rank 0 was killed by SIGKILL" in reasons["killed"]
    assert "raised ValueError: boom" in reasons["raised"]
    assert "weights differs: x here, w with a" in reasons["other"]
    assert "loss of iteration" in reasons["wrong"]
    assert found.speedup(found.records[-1]) is not None
    assert found.exit_code == 4
    stacks = list((tmp_path / "stacks").iterdir())
    assert len(stacks) == 2


def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    slow = side("b", 2, milliseconds=60_000.0)
    found = compared(tmp_path, side("a", 2), slow, timeout_s=2.0)
    ending = found.records[1].ending
    assert ending is not None
    assert ending.status == "timeout"
    assert "no rank made progress for 2 s" in ending.reason
    assert found.records[0].ending is None


def test_one_after_the_other_at_most_one_side_is_alive(tmp_path: Path) -> None:
    most = 0

    class Counting(Watcher):
        def stage(self, label: str, what: str) -> None:
            nonlocal most
            workers = [one for one in psutil.Process().children() if "bench.launch.worker" in " ".join(one.cmdline())]
            most = max(most, len(workers))

    found = compared(tmp_path, side("a"), side("b"), apart=True, watcher=Counting())
    assert most == 1
    assert found.exit_code == 0


def test_an_interrupt_keeps_what_was_measured_and_leaves_no_process(tmp_path: Path) -> None:
    class Interrupting(Watcher):
        turns = 0

        def stage(self, label: str, what: str) -> None:
            self.turns += what == "runs"
            if self.turns == 6:
                self.turns += 1
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    sides = [side(label, milliseconds=30.0) for label in "ab"]
    found = compared(tmp_path, *sides, steps=80, watcher=Interrupting())
    assert found.interrupted
    assert found.exit_code == 4
    times = {row.params["who"]: row for row in found.rows if row.metric == "iteration_time"}
    assert {row.status for row in times.values()} == {"ok"}
    assert 0 < times["a"].n < 80
    time.sleep(0.1)
    assert not [one for one in psutil.Process().children() if "bench.launch.worker" in " ".join(one.cmdline())]


def test_more_than_memory_holds_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.comparison.session.available_memory_bytes", lambda: 300 << 20)
    with pytest.raises(UsageError, match="--apart"):
        compared(tmp_path, side("a"), side("b"))
    assert compared(tmp_path, side("a"), side("b"), apart=True).exit_code == 0


def test_what_one_side_alone_cannot_have_is_not_put_down_to_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.comparison.session.available_memory_bytes", lambda: 300 << 20)
    with pytest.raises(UsageError, match=r"1 side needs about .* take fewer ranks or a smaller model") as error:
        compared(tmp_path, side("a", 2))
    assert "--apart" not in str(error.value)


def test_a_store_that_is_full_at_the_end_does_not_cost_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(writer: RunWriter, rows: object) -> None:
        raise StoreError("cannot write runs: No space left on device; free some space")

    monkeypatch.setattr(RunWriter, "append", full)
    found = compared(tmp_path, side("a"), side("b"))
    assert found.unstored.startswith("cannot write runs: No space left")
    assert found.exit_code == 4
    assert {row.status for row in found.rows if row.metric == "iteration_time"} == {"ok"}


def test_a_side_of_other_ranks_than_the_lab_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the lab .* has 4"):
        compared(tmp_path, side("a", 2), lab="nodes=2,ranks-per-node=2,rate=1gbit")


def test_a_side_goes_by_the_name_that_its_rows_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the who of b's case must be 'b'"):
        compared(tmp_path, side("a"), Side("b", params("c"), 1))
