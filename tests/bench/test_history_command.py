"""The verb ``bench history`` as users call it: JSON, page, errors and exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from bench.errors import UsageError
from bench.history_command import history
from tests.bench.history_rows import store_run

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer()
app.command()(history)


def call(store: Path, *arguments: str) -> Any:
    result = CliRunner().invoke(app, ["latency", "--store", str(store), *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for night in range(40):
        store_run(tmp_path / "store", night, {"a": 100.0 + night % 3 + (10 if night >= 25 else 0)})
    return tmp_path / "store"


def test_json_has_every_point_and_change(store: Path) -> None:
    found = json.loads(call(store, "--json").stdout)
    (series,) = found["series"]
    assert (found["version"], found["metric"], len(series["points"])) == (2, "latency", 40)
    (change,) = series["changes"]
    assert (change["kind"], change["status"], change["stands"]) == ("regression", "confirmed", True)
    assert change["run_id"] == series["points"][25]["run_id"]
    assert change["effect"] == pytest.approx(0.099, abs=0.001)


def test_exit_codes_only_when_asked_for(store: Path) -> None:
    assert call(store).exit_code == 0
    assert call(store, "--fail-on-regression").exit_code == 1
    assert call(store, "--fail-on-regression", "--since", "2026-02-05").exit_code == 0
    assert call(store, "--fail-on-regression", "--min-effect", "0.2").exit_code == 0


def test_a_page_is_written_beside_the_table(store: Path, tmp_path: Path) -> None:
    result = call(store, "--html", str(tmp_path / "new" / "history.html"))
    assert "confirmed regression" in result.stdout
    assert (tmp_path / "new" / "history.html").stat().st_size > 1_000_000


def test_wrong_calls_are_usage_errors(store: Path) -> None:
    for arguments in (("--where", "op=z"), ("--suite", "none"), ("--significance", "2"), ("--min-effect", "-1")):
        with pytest.raises(UsageError):
            call(store, *arguments)
