"""The page: self-contained, nothing that runs, every comparison, hostile names as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from bench.gate_output.html import COLUMNS, render
from tests.bench.gate_rows import HOSTILE, comparison, hostile_result, regressed, result

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Elements, texts and what is wrong with the nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_whole_and_asks_no_network() -> None:
    text = render(result(regressed(), comparison(params={"op": "x", "bytes": 1}), notes=["look"], errors=["expired"]))
    page = Page(text)
    assert page.wrong == []
    assert "script" not in page.tags
    assert "default-src 'none'" in text
    assert not [value for name, value in page.attributes if name in ("src", "srcset") or str(value).startswith("http")]
    assert "url(" not in text
    shown = " ".join(page.texts)
    assert all(word in shown for word in ("Regressed: 2 metrics compared", "look", "expired", "+10.0% [+9.0%, +11.0%]"))
    assert page.tags.count("tr") == 2 + 3


def test_rows_have_every_column_and_a_plot() -> None:
    text = render(result(regressed()))
    assert len(re.findall("<td", text)) == len(COLUMNS) + 1
    assert "gate-plot regressed" in text


def test_a_comparison_without_numbers_has_no_plot() -> None:
    missing = comparison(
        verdict="missing", effect=None, change=None, interval=None, threshold=None, candidate_value=None
    )
    assert "<svg" not in render(result(missing))


def test_hostile_names_are_text() -> None:
    text = render(hostile_result())
    page = Page(text)
    assert page.wrong == []
    assert "script" not in page.tags
    assert not set(text) & {"\x1b", "\u202e", "\udc80"}
    assert HOSTILE.split(" |")[0] in "".join(page.texts)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_an_empty_result_is_a_page() -> None:
    assert "Not measured: 0 metrics compared" in "".join(Page(render(result())).texts)
