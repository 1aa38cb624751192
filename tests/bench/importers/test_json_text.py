"""JSON documents are found among log lines, and each entry's line is known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.importers.contents import Contents
from bench.importers.json_text import documents

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.lists(values, max_size=6), st.none() | st.integers(0, 4))
def test_the_line_of_every_element(entries: list[object], indent: int | None) -> None:
    text = "first\n" + json.dumps({"list": entries}, indent=indent)
    contents = Contents("x")
    (document,) = documents(text, contents)
    assert document.data == {"list": entries}
    lines = document.lines_of("list")
    assert len(lines) == len(entries)
    for line, entry in zip(lines, entries, strict=True):
        shown = text.split("\n")[line - 1].lstrip()
        start = json.dumps(entry, indent=indent).split("\n")[0]
        assert start in shown


@settings(max_examples=60)
@given(st.dictionaries(st.text(), values, max_size=5))
def test_the_line_of_every_member(members: dict[str, object]) -> None:
    text = json.dumps({"all": members}, indent=1)
    (document,) = documents(text, Contents("x"))
    lines = document.lines_of("all")
    assert [text.split("\n")[line - 1].strip().split('": ')[0] for line in lines] == [
        json.dumps(name)[:-1].split('": ')[0] for name in members
    ]


def test_documents_one_after_the_other_and_what_is_around_them() -> None:
    contents = Contents("x")
    found = documents('\ufeffwarning\n{"a": NaN}\n\n  {"b": -NaN,\n "c": 1}\nend\n', contents)
    assert [(document.line, sorted(document.data)) for document in found] == [(2, ["a"]), (4, ["b", "c"])]
    assert contents.notes == ["line 1: 2 line(s) around the JSON are not read"]
    assert contents.faults == []


@pytest.mark.parametrize(("text", "line"), [('{"a": 1}\n{"b": \n', 3), ("", 1), ("[1]", 1), ("{" * 100_000, 1)])
def test_what_is_no_json_is_a_fault_with_its_line(text: str, line: int) -> None:
    contents = Contents("x")
    documents(text, contents)
    assert [fault.line for fault in contents.faults] == [line]
