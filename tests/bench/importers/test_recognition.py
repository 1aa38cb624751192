"""Every tool's files are refused under every other tool's name, and none under its own."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from bench.importers import IMPORTERS
from bench.importers.contents import Source
from bench.importers.into_store import Wishes, import_file
from bench.importers.recognition import refusal
from bench.store.layout import runs_folder

DATA = Path(__file__).resolve().parents[2] / "data" / "imports"
FILES = {
    tool: [path for path in sorted((DATA / tool).rglob("*")) if path.suffix in (".json", ".txt")] for tool in IMPORTERS
}
# The oldest formats and a machine's description: nothing in them tells of a tool.
UNMARKED = {"machine.json"}


@pytest.mark.parametrize(("tool", "other"), list(itertools.permutations(IMPORTERS, 2)))
def test_a_file_of_another_tool_is_refused_with_one_line(tmp_path: Path, tool: str, other: str) -> None:
    for path in FILES[other]:
        result = import_file(tool, str(path), path.read_bytes(), Wishes(), tmp_path, [], {})
        assert result.rows == []
        assert not result.is_whole
        if path.name not in UNMARKED:
            assert [fault.what for fault in result.contents.faults] == [
                f"this is {other}'s output, not {tool}'s; nothing of the file is read: bench import {other}"
            ], path
    assert not runs_folder(tmp_path).exists()


@pytest.mark.parametrize("tool", IMPORTERS)
def test_no_file_is_refused_under_its_own_name(tool: str) -> None:
    assert FILES[tool]
    assert [path for path in FILES[tool] if refusal(tool, Source("-", path.read_text()))] == []


def test_the_line_of_the_other_tools_document_is_told() -> None:
    own = json.dumps({"results": [{"command": "a", "times": [1.0]}]})
    other = json.dumps({"context": {}, "benchmarks": [{"name": "b", "real_time": 1}]})
    contents = refusal("hyperfine", Source("-", f"{own}\n{other}\n"))
    assert contents is not None
    assert [(fault.line, "google-benchmark's" in fault.what) for fault in contents.faults] == [(2, True)]


@pytest.mark.parametrize("tool", IMPORTERS)
def test_other_json_in_a_log_is_no_mark(tool: str) -> None:
    logged: list[dict[str, object]] = [
        {"commit_hash": "0" * 40},
        {"machine_info": {}},
        {"results": {"loss": 1}},
        {"context": {}},
    ]
    for data in logged:
        assert refusal(tool, Source("-", f"{json.dumps(data)}\n")) is None
