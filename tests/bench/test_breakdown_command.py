"""``bench breakdown`` as users call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.breakdown_command import breakdown, trace_files
from bench.errors import BenchError, UsageError
from tests.bench.trace.made_up import KNOWN, write

DATA = Path(__file__).parents[1] / "data" / "traces"

app = typer.Typer()
app.command()(breakdown)


def call(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_table_json_and_a_page(tmp_path: Path) -> None:
    trace, page = DATA / "training_128_ranks_rank0.json.gz", tmp_path / "a.html"
    assert "exposed" in call(trace)
    record = json.loads(call(trace, "--json", "--html", page))
    assert record["calls"] == {"all_gather": 2, "all_reduce": 4, "all_to_all": 4}
    assert "Where the time went" in page.read_text()
    assert call(trace, "--html", page).strip() == f"page: {page}"


def test_a_folder_is_its_traces_without_the_merged_one(tmp_path: Path) -> None:
    for name in ("rank1.json.gz", "rank0.json", "merged.json.gz"):
        write(tmp_path / name, KNOWN)
    assert [path.name for path in trace_files([tmp_path, tmp_path / "rank0.json"])] == ["rank0.json", "rank1.json.gz"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no traces"):
        trace_files([tmp_path / "empty"])


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]"])
def test_a_trace_with_nothing_in_it_is_not_measured(tmp_path: Path, text: str) -> None:
    (tmp_path / "rank0.json").write_text(text)
    done = CliRunner().invoke(app, [str(tmp_path / "rank0.json")])
    assert isinstance(done.exception, BenchError)
    assert done.exception.exit_code == 4
    assert "rank0.json: nothing to break down" in str(done.exception)
