"""The verbs of ``bench db``: what they print, their exit codes, and their JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from bench.errors import EXIT_NOT_MEASURED, UsageError
from bench.selftest import synthetic_record, synthetic_rows
from bench.store.layout import runs_folder
from bench.store.reader import Store
from bench.store.writer import RunWriter
from bench.store_commands import DEFAULT_STORE, db_app, default_store_path

if TYPE_CHECKING:
    from click.testing import Result


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two sealed runs."""
    for seed in range(2):
        write_run(tmp_path / "store", seed)
    return tmp_path / "store"


def write_run(store: Path, seed: int, seal: bool = True) -> str:
    with RunWriter(store, synthetic_record(seed)) as writer:
        writer.append(list(synthetic_rows(100, seed)))
        if seal:
            writer.seal()
    return writer.record.run_id


def db(store: Path, *arguments: str) -> Result:
    """Run a verb; its errors are raised."""
    result = CliRunner().invoke(db_app, [*arguments, "--store", str(store)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def as_json(result: Result) -> Any:
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_the_store_comes_from_the_variable_or_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_STORE", raising=False)
    assert default_store_path() == DEFAULT_STORE == Path("results/store")
    monkeypatch.setenv("BENCH_STORE", "/elsewhere")
    assert default_store_path() == Path("/elsewhere")


def test_verbs_take_the_store_of_the_variable(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_STORE", str(store))
    assert len(json.loads(CliRunner().invoke(db_app, ["list", "--json"]).stdout)) == 2


@pytest.mark.parametrize("verb", ["list", "query", "export", "merge", "verify", "compact"])
def test_each_verb_has_help_with_an_example(verb: str) -> None:
    result = CliRunner().invoke(db_app, [verb, "--help"])
    assert f"Example: bench db {verb}" in " ".join(result.stdout.split())
    assert "--json" in result.stdout


def test_list(store: Path) -> None:
    run = write_run(store, 2, seal=False)
    listed = as_json(db(store, "list", "--json"))
    assert [entry["state"] for entry in listed] == ["sealed", "sealed", "open"]
    assert listed[2]["run_id"] == run
    assert listed[2]["counts"] == {"ok": 99, "failed": 1, "timeout": 0, "invalid": 0, "skipped": 0}
    text = db(store, "list").stdout
    assert run in text
    assert "99 ok 1 failed" in text


def test_list_tells_an_interrupted_run_from_a_complete_one(tmp_path: Path) -> None:
    assert "1/?" in listed_cases(tmp_path / "older", asked=0)
    complete = listed_cases(tmp_path / "complete", asked=1)
    assert "1/1" in complete
    assert "interrupted" not in complete
    partial = listed_cases(tmp_path / "partial", asked=44)
    assert "1/44" in partial
    assert "1 of 44 cases have rows, so that run is interrupted or still running; `bench run --resume 2" in partial


def listed_cases(store: Path, asked: int) -> str:
    """The list of a store with one sealed run, that has four rows of one case of so many."""
    record = synthetic_record(0)
    record.cases = asked
    case = list(synthetic_rows(4, 0))
    with RunWriter(store, record) as writer:
        writer.append([replace(row, case=case[0].case, suite=case[0].suite) for row in case])
        writer.seal()
    [entry] = as_json(db(store, "list", "--json"))
    assert (entry["cases"], entry["cases_with_rows"]) == (asked, 1)
    return db(store, "list").stdout


def test_list_of_nothing(tmp_path: Path) -> None:
    assert "no runs in" in db(tmp_path, "list").stdout
    assert as_json(db(tmp_path, "list", "--json")) == []


def test_query(store: Path) -> None:
    sql = "select status, count(*) as n, min(reason) as why, max(value) as most from rows group by all order by n"
    failed, good = as_json(db(store, "query", sql, "--json"))
    assert failed == {"status": "failed", "n": 2, "why": "rank 1 was killed by SIGKILL", "most": None}
    assert (good["status"], good["n"]) == ("ok", 198)
    text = db(store, "query", sql).stdout
    assert "rank 1 was killed by SIGKILL" in text
    assert "nan" not in text.lower()


def test_a_wrong_query(store: Path) -> None:
    with pytest.raises(UsageError, match="the query failed"):
        db(store, "query", "selekt")


@pytest.mark.parametrize("form", ["csv", "parquet", "json", "jsonl"])
def test_export(store: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "rows"
    result = db(store, "export", "latest", "--format", form, "-o", str(file), "--json")
    report = json.loads(result.stdout)
    assert report["runs"] == [Store(store).resolve("latest")]
    assert file.stat().st_size > 0
    printed = db(store, "export", "latest", "--format", form)
    if form != "parquet":
        assert printed.stdout_bytes == file.read_bytes()


def test_export_of_all_runs_and_of_one_twice(store: Path) -> None:
    assert len(db(store, "export", "all", "--format", "jsonl").stdout.splitlines()) == 200
    run = Store(store).resolve("latest")
    assert len(db(store, "export", run, "latest", "--format", "jsonl").stdout.splitlines()) == 100


def test_export_refuses_what_it_cannot_do(store: Path) -> None:
    with pytest.raises(UsageError, match="unknown format 'xml'"):
        db(store, "export", "latest", "--format", "xml")
    with pytest.raises(UsageError, match="unknown run 'nothing'"):
        db(store, "export", "nothing")
    with pytest.raises(UsageError, match="--json reports on a file"):
        db(store, "export", "latest", "--json")


def test_merge(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    sealed, opened = write_run(other, 5), write_run(other, 6, seal=False)
    result = db(store, "merge", str(other))
    assert "2 run(s) taken" in result.stdout
    assert f"run {opened} is open there" in result.stdout
    report = as_json(db(store, "merge", str(other), "--json"))
    assert (report["taken"], report["present"]) == ([], [sealed, opened])


def test_verify(store: Path) -> None:
    result = db(store, "verify")
    assert (result.exit_code, result.stdout) == (0, "")
    path = next(runs_folder(store).iterdir())
    path.write_bytes(path.read_bytes()[:-2])
    result = db(store, "verify")
    assert result.exit_code == EXIT_NOT_MEASURED
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"{path}: ")
    assert json.loads(db(store, "verify", "--json").stdout)["faults"] == [line]


def test_compact(store: Path) -> None:
    opened = write_run(store, 2, seal=False)
    text = db(store, "compact").stdout
    assert "2 files folded into archive." in text
    assert f"run {opened} is left open" in text
    report = as_json(db(store, "compact", "--json"))
    assert (report["folded"], report["left_open"]) == ([], [opened])


@pytest.mark.parametrize("verb", ["verify", "compact"])
def test_a_misspelt_store_is_not_said_to_be_fine(tmp_path: Path, verb: str) -> None:
    for path in (tmp_path / "stroe", tmp_path):
        with pytest.raises(UsageError, match="there is no store in"):
            db(path, verb)


def test_a_torn_line_is_a_warning_on_standard_error(store: Path) -> None:
    path = runs_folder(store) / f"{write_run(store, 2, seal=False)}.jsonl"
    text = path.read_text().replace(f'"pid":{os.getpid()}', '"pid":4194305')
    path.write_text(text + "{")
    for arguments in (["list", "--json"], ["query", "select 1 as a", "--json"], ["export", "latest", "-f", "json"]):
        result = db(store, *arguments)
        assert "warning" in result.stderr
        assert "the last line is torn" in result.stderr
        json.loads(result.stdout)


def test_nothing_heavy_is_imported_for_help() -> None:
    script = (
        "import sys; import bench.store_commands;"
        "print([name for name in ('duckdb', 'pandas', 'numpy', 'torch', 'rich.progress') if name in sys.modules])"
    )
    root = str(Path(__file__).parents[2])
    output = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": root},
    ).stdout
    assert output.strip() == "[]"
