"""Markdown: tables that hold, details folded, and hostile names that stay code."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bench.gate_output.markdown import HEADER, MOST_ROWS, code, render
from bench.gate_output.text import visible
from tests.bench.gate_rows import comparison, hostile_result, regressed, result


def tokens(text: str) -> list[Any]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def leaves(text: str) -> list[Any]:
    """Inline tokens, flattened."""
    return [leaf for token in tokens(text) if token.type == "inline" for leaf in token.children]


def rows_of(text: str) -> list[int]:
    """Number of cells in each row of each table."""
    counts: list[int] = []
    for token in tokens(text):
        if token.type == "tr_open":
            counts.append(0)
        elif token.type in ("td_open", "th_open"):
            counts[-1] += 1
    return counts


def test_what_needs_a_look_is_open_and_the_rest_folded() -> None:
    text = render(result(regressed(), comparison(params={"op": "all_gather", "bytes": 2048})))
    assert text.startswith("## \N{CROSS MARK} Performance: regressed\n")
    assert text.index("**regressed**") < text.index("<details>") < text.index("| pass |")
    assert "2 compared, 1 regressed, 1 pass" in text


def test_each_row_has_every_cell() -> None:
    assert rows_of(render(hostile_result())) == [len(HEADER)] * 6


def test_hostile_names_are_neither_markup_nor_links() -> None:
    text = render(hostile_result())
    kinds = {leaf.type for leaf in leaves(text)}
    assert kinds <= {"text", "code_inline", "html_inline", "softbreak", "strong_open", "strong_close"}
    tags = {leaf.content for leaf in leaves(text) if leaf.type == "html_inline"}
    assert tags <= {"<code>", "</code>"}
    blocks = [token.content for token in tokens(text) if token.type == "html_block"]
    assert all("script" not in block for block in blocks)
    assert not set(text) & {"\x1b", "\u202e", "\udc80"}
    outside = "".join(leaf.content for leaf in leaves(text) if leaf.type == "code_inline")
    assert "@team" not in text.replace(outside, "").replace("&#64;team", "")


@given(st.text(max_size=60))
def test_code_shows_any_text_as_it_is_in_a_table(text: str) -> None:
    line = f"| {code(text)} | b |"
    cells = [token for token in tokens(f"| a | b |\n| --- | --- |\n{line}\n") if token.type == "inline"][2:]
    assert len(cells) == 2
    shown = "".join(leaf.content for leaf in cells[0].children if leaf.type != "html_inline")
    assert shown.split() == visible(text).split()


def test_long_tables_are_cut_and_say_so() -> None:
    text = render(result(*(regressed(params={"bytes": size}) for size in range(MOST_ROWS + 5))))
    assert "5 more are in the JSON" in text
    assert len(text) < 65_000


def test_errors_are_listed() -> None:
    assert "- **error**: `waiver 1 expired`" in render(result(comparison(), errors=["waiver 1 expired"]))
