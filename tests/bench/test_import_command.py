"""The verb: what it prints where, its exit codes, and hostile names in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from bench.errors import UsageError
from bench.import_command import import_results, parse_better, parse_params, printable
from bench.importers import IMPORTERS
from bench.store.reader import Store
from bench.store.row import Row

if TYPE_CHECKING:
    from click.testing import Result

DATA = Path(__file__).resolve().parents[1] / "data" / "imports"

app = typer.Typer()
app.command("import")(import_results)


def run(store: Path, *arguments: str, stdin: str | None = None) -> Result:
    """Run the verb; its errors are raised."""
    result = CliRunner().invoke(app, [*arguments, "--store", str(store)], input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


FILES = [
    ("nccl-tests", "2.17.1_two_nodes.txt", 0),
    ("nccl-tests", "2.19.7_broke_then_ran.txt", 4),
    ("osu", "5.6.3_several.txt", 0),
    ("osu", "7.5_crashed.txt", 4),
    ("google-benchmark", "1.7_repetitions.json", 4),
    ("google-benchmark", "old_2016.json", 0),
    ("nvbench", "made.json", 0),
    ("pytest-benchmark", "5.3.1_data.json", 0),
    ("asv", "new/m1/2e7ab5b0-existing-py3.11.json", 4),
    ("hyperfine", "1.15.json", 0),
]


@pytest.mark.parametrize(("tool", "file", "code"), FILES)
def test_files_of_every_tool(tmp_path: Path, tool: str, file: str, code: int) -> None:
    first = run(tmp_path, tool, str(DATA / tool / file), "--json")
    assert first.exit_code == code
    rows = [Row.from_dict(json.loads(line)) for line in first.stdout.splitlines()]
    assert [row.to_json() for row in rows] == [row.to_json() for row in Store(tmp_path).rows()]
    again = run(tmp_path, tool, str(DATA / tool / file), "--json")
    assert (again.stdout, again.exit_code) == (first.stdout, code)
    assert [row.to_json() for row in Store(tmp_path).rows()] == first.stdout.splitlines()
    if rows:
        assert "nothing added" in again.stderr


def test_faults_are_told_by_file_and_line(tmp_path: Path) -> None:
    file = str(DATA / "nccl-tests" / "2.19.7_broke_then_ran.txt")
    result = run(tmp_path, "nccl-tests", file)
    assert f"{file}:13: the table has no end" in result.stderr
    assert result.stdout == ""


def test_many_files_are_runs_of_their_own(tmp_path: Path) -> None:
    files = [str(path) for path in sorted((DATA / "asv" / "new" / "m1").iterdir())]
    result = run(tmp_path, "asv", *files)
    assert result.exit_code == 4, "a benchmark of it failed"
    assert len(Store(tmp_path).runs()) == 1
    assert "machine.json: no row" in result.stderr


def test_a_file_that_describes_only_measures_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "asv", str(DATA / "asv" / "new" / "benchmarks.json")).exit_code == 4


def test_rows_of_a_skipped_kind_alone_measure_nothing(tmp_path: Path) -> None:
    document = {"benchmarks": [{"name": "a", "skipped": True, "skip_message": "no"}]}
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document))
    assert run(tmp_path / "store", "google-benchmark", str(file)).exit_code == 4


def test_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown tool"):
        run(tmp_path, "hyperspeed", "x")
    with pytest.raises(UsageError, match="no such file"):
        run(tmp_path, "osu", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="a folder"):
        run(tmp_path, "osu", str(tmp_path))
    with pytest.raises(UsageError, match="once only"):
        run(tmp_path, "osu", "-", "-")
    assert Store(tmp_path).runs() == []


def test_help_names_every_tool_and_an_example() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "Example: bench import nccl-tests" in text
    assert all(tool in text for tool in IMPORTERS)


def test_parameters_take_the_type_that_they_look_like() -> None:
    assert parse_params(["a=4", "b=true", "c=1.5", "d=x=y", "e=1e3", "f=nan"]) == {
        "a": 4,
        "b": True,
        "c": 1.5,
        "d": "x=y",
        "e": 1000.0,
        "f": "nan",
    }
    assert parse_better(["m=lower"]) == {"m": "lower"}
    for wrong in ("a", "=1", "a="):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parse_params([wrong])
    with pytest.raises(UsageError, match="METRIC=higher"):
        parse_better(["m=up"])


HOSTILE = "<img src=x onerror=alert(1)>\x1b]0;owned\x07\r\n::error::x\u202e../../etc"


def test_hostile_names_are_text_in_every_output(tmp_path: Path) -> None:
    document = {
        "benchmarks": [
            {"name": HOSTILE, "real_time": 1, "cpu_time": 1, "time_unit": HOSTILE},
            {"name": HOSTILE, "error_occurred": True, "error_message": HOSTILE, "time_unit": "ns"},
        ]
    }
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps(document))
    result = run(tmp_path / "store", "google-benchmark", str(file), "--json")
    for text in (result.stderr, result.stdout):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert all(not line.startswith("::error::") for line in text.splitlines())
    assert Store(tmp_path / "store").rows()[0].params["benchmark"] == HOSTILE


def test_printable_keeps_letters_of_every_script() -> None:
    assert printable("Größe 東\x07") == "Größe 東\\x07"


COUNTED = {"benchmarks": [{"name": "B", "real_time": 1, "cpu_time": 1, "time_unit": "ns", "hits": 3}]}


@pytest.mark.parametrize(
    ("better", "message"),
    [
        ("nosuch=higher", "nosuch: no such metric in the files, which have cpu_time, hits, real_time"),
        ("real_time=higher", "real_time: its direction is known; metrics without one: hits"),
    ],
)
def test_a_direction_that_changes_nothing_is_refused(tmp_path: Path, better: str, message: str) -> None:
    file = tmp_path / "out.json"
    file.write_text(json.dumps(COUNTED))
    with pytest.raises(UsageError, match=message):
        run(tmp_path, "google-benchmark", str(file), "--better", better)
    assert Store(tmp_path).runs() == []
    assert run(tmp_path, "google-benchmark", str(file), "--better", "hits=higher").exit_code == 0
    assert {row.metric: row.better for row in Store(tmp_path).rows()}["hits"] == "higher"


def test_another_tools_file_is_one_line_and_stores_nothing(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text(json.dumps(COUNTED))
    result = run(tmp_path, "pytest-benchmark", str(file))
    assert result.exit_code == 4
    assert result.stderr.splitlines() == [
        f"{file}:1: this is google-benchmark's output, not pytest-benchmark's; nothing of the file is read: "
        "bench import google-benchmark"
    ]
    assert Store(tmp_path).runs() == []
