"""A/A noise out of the store: which runs count, of which session, on which machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.environment import identity_digest
from bench.gate_matching import series_of
from bench.noise_floors import NoiseFloors, load_noise, session_of
from tests.bench.gate_rows import HERE, THERE, record, row, samples_of, store_run

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = identity_digest({"identity": HERE})
SERIES = series_of(row([1.0]))


def aa_run(store: Path, median: float, session: str, **changes: Any) -> None:
    command = ["noise", "collectives", "--repeats", "2", "--session", session]
    store_run(store, [row(samples_of(median), **changes.pop("row", {}))], command=command, **changes)


def test_only_runs_of_bench_noise_have_a_session() -> None:
    assert session_of(record(command=["noise", "memory", "--session", "a"])) == "a"
    for command in ([], ["run", "noise", "--session", "a"], ["noise"], ["noise", "--session"]):
        assert session_of(record(command=command)) == ""


def test_the_floor_is_what_two_such_runs_differ_by(tmp_path: Path) -> None:
    for median in (95, 100, 105, 98, 102):
        aa_run(tmp_path, median, "a")
    floors = load_noise(tmp_path)
    floor = floors.floor(SERIES, [DIGEST])
    assert floor is not None
    assert 0.05 < floor < 0.25
    assert floors.floor(SERIES, [DIGEST], turns=4) == pytest.approx(floor / 2)


def test_other_runs_say_nothing_of_noise(tmp_path: Path) -> None:
    for median in (50, 100):
        store_run(tmp_path, [row(samples_of(median))])
    assert load_noise(tmp_path).floor(SERIES, [DIGEST]) is None
    assert load_noise(tmp_path / "nowhere").floor(SERIES, [DIGEST]) is None


def test_the_newest_session_that_is_whole_counts(tmp_path: Path) -> None:
    for median, session in ((50, "old"), (100, "old"), (100, "new"), (100.1, "new"), (70, "cut short")):
        aa_run(tmp_path, median, session)
    floor = load_noise(tmp_path).floor(SERIES, [DIGEST])
    assert floor is not None
    assert floor < 0.05


def test_machines_are_apart_and_the_noisier_of_two_counts(tmp_path: Path) -> None:
    for median in (100, 100.1):
        aa_run(tmp_path, median, "quiet")
    for median in (80, 100):
        aa_run(tmp_path, median, "loud", identity=THERE)
    floors, there = load_noise(tmp_path), identity_digest({"identity": THERE})
    quiet, loud = floors.floor(SERIES, [DIGEST]), floors.floor(SERIES, [there])
    assert quiet is not None
    assert loud is not None
    assert quiet < loud == floors.floor(SERIES, [DIGEST, there])
    assert floors.floor(SERIES, [None, "unknown"]) is None


def test_failed_rows_and_other_series_do_not_count(tmp_path: Path) -> None:
    aa_run(tmp_path, 100, "a")
    aa_run(tmp_path, 100, "a", row={"metric": "algbw"})
    store_run(tmp_path, [row()], command=["noise", "--session", "a"])
    assert load_noise(tmp_path).floor(SERIES, [DIGEST]) is None


def test_noise_about_zero_is_unknown_and_nothing_breaks() -> None:
    rows = [row([-1.0, 0.0, 1.0], run_id=f"run{place}") for place in range(3)]
    assert NoiseFloors({(SERIES, DIGEST): rows}).floor(SERIES, [DIGEST]) is None
