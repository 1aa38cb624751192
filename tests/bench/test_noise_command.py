"""``bench noise``: repeats become ordinary runs of one session, and their noise is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from bench.errors import UsageError
from bench.noise_command import noise
from bench.store.reader import Store

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

SUITE = "tests.faulty_suite:FaultySuite"


def call(*arguments: str) -> Result:
    """Run the verb; its errors are raised."""
    app = typer.Typer()
    app.command()(noise)
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", "0"), "--repeats needs a whole number from 1 to 100, not 0"),
        (("--repeats", "101"), "--repeats needs"),
        (("--repeats", "1"), "one repeat says nothing of noise"),
        (("--session", "-x"), "--session needs a name"),
        (("--preset", "none"), "unknown preset 'none'"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        call(SUITE, *arguments, "--store", str(tmp_path))
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir()), "nothing was measured"


def test_an_unknown_suite_is_said_before_any_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command()(noise)
    done = CliRunner().invoke(app, ["nosuite", "--store", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "unknown suite 'nosuite'" in str(done.exception)
    assert "repeat" not in done.output + capsys.readouterr().err


def test_a_launchers_processes_measure_one_repeat_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(UsageError, match="each repeat needs processes of its own"):
        call(SUITE, "--store", str(tmp_path))


@pytest.mark.alone
def test_repeats_are_runs_of_one_session(tmp_path: Path) -> None:
    arguments = ["self", "--select", "what=loop", "--max-time", "0.02", "--store", str(tmp_path)]
    done = call(*arguments, "--repeats", "3", "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    (series,) = found["series"]
    assert (series["suite"], series["metric"]) == ("self", "loop_overhead")
    assert series["floor"] > 0
    assert series["findings"] == ["few_measurements"] or "few_measurements" in series["findings"]
    runs = [run.record for run in Store(tmp_path).runs()]
    assert series["runs"] == [run.run_id for run in runs]
    assert {run.command[-1] for run in runs} == {found["session"]}
    assert {tuple(run.command[:3]) for run in runs} == {("noise", "self", "--preset")}

    joined = call(*arguments, "--repeats", "1", "--session", found["session"])
    assert "the noise of 1 of 1 series is known" in joined.stderr
    assert "loop_overhead" in joined.stdout
    assert len(Store(tmp_path).runs()) == 4
