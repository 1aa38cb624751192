"""Elements escape every text, whatever is in it."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from bench.report.markup import Markup, element, joined


def test_text_is_escaped_and_markup_is_kept() -> None:
    inner = element("b", "1 < 2")
    assert element("p", "a & b ", inner, None) == "<p>a &amp; b <b>1 &lt; 2</b></p>"


def test_attributes() -> None:
    made = element("a", "x", href="#y", class_="k", aria_label='say "hi"', hidden=True, open=False, title=None)
    assert made == '<a href="#y" class="k" aria-label="say &quot;hi&quot;" hidden>x</a>'
    assert element("br") == "<br>"
    assert isinstance(joined(["<"]), Markup)


@given(st.text(), st.text())
def test_any_text_comes_back_from_a_parser_as_it_went_in(text: str, attribute: str) -> None:
    seen: list[object] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append((tag, attrs))

        def handle_data(self, data: str) -> None:
            seen.append(data)

    reader = Reader(convert_charrefs=True)
    reader.feed(element("p", text, title=attribute))
    reader.close()
    assert seen[0] == ("p", [("title", attribute)])
    assert "".join(str(part) for part in seen[1:]) == text
