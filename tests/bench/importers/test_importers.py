"""Damaged files of every tool: no exception, every row can be stored, and what is damaged is told."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.importers import IMPORTERS, importer
from bench.importers.contents import Source
from bench.importers.pooling import pool

DATA = Path(__file__).resolve().parents[2] / "data" / "imports"
DOCUMENTS = {
    "nccl-tests": "json_made.json",
    "google-benchmark": "1.7_repetitions.json",
    "nvbench": "made.json",
    "pytest-benchmark": "3.4.1_data.json",
    "asv": "new/m1/2e7ab5b0-existing-py3.11.json",
    "hyperfine": "1.20_made.json",
}
TEXTS = {"nccl-tests": "2.17.1_two_nodes.txt", "osu": "5.6.3_several.txt"}

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([None]),
    st.just({"": {}}),
    st.just("nan"),
    st.just(1e400),
    st.just("\ud800"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def check(tool: str, text: str) -> int:
    contents = importer(tool)(Source("-", text))
    rows = pool(contents)
    for row in rows:
        row.run_id = "run"
        row.to_json()
    assert rows or contents.faults or contents.notes
    return len(rows)


def test_every_tool_is_damaged_below() -> None:
    assert set(DOCUMENTS) | set(TEXTS) == set(IMPORTERS)


@pytest.mark.parametrize("tool", DOCUMENTS)
def test_any_part_of_a_document_may_be_anything(tool: str) -> None:
    document = json.loads((DATA / tool / DOCUMENTS[tool]).read_text())
    paths = places(document)

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(paths), junk)
    def damage(path: tuple[Any, ...], value: Any) -> None:
        check(tool, json.dumps(replaced(document, path, value)))

    damage()


@pytest.mark.parametrize("tool", DOCUMENTS)
def test_a_document_that_is_cut_anywhere_is_told(tool: str) -> None:
    text = (DATA / tool / DOCUMENTS[tool]).read_text().rstrip()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(text) - 1))
    def cut(length: int) -> None:
        contents = importer(tool)(Source("-", text[:length]))
        assert contents.faults
        assert contents.rows == []

    cut()


@pytest.mark.parametrize("tool", TEXTS)
def test_a_table_that_is_cut_anywhere_keeps_the_lines_before(tool: str) -> None:
    text = (DATA / tool / TEXTS[tool]).read_text()
    whole = [(row.case, row.metric, row.value) for row in importer(tool)(Source("-", text)).rows]

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(text) - 1))
    def cut(length: int) -> None:
        contents = importer(tool)(Source("-", text[:length]))
        kept = [(row.case, row.metric, row.value) for row in contents.rows]
        columns = len(text[:length].rpartition("\n")[2].split())
        # Of the line that was cut, the numbers before the cut may be there, and the last one in part.
        sure = max(0, len(kept) - 6 * bool(columns))
        assert kept[:sure] == whole[:sure]
        assert contents.faults or contents.rows

    cut()
