"""The frame of the core's pages: what is foreign is escaped, scripts run by hash alone, files are whole."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.page import frame

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = "</script><script>alert(1)</script>&"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def page(script: str = "start();", value: float = 1.0) -> str:
    return frame.document(
        title=FOREIGN,
        subtitle=[FOREIGN, "second"],
        verdict=f"{FOREIGN}\nsecond",
        sections=[("one", FOREIGN)],
        body='<section id="one"></section>',
        data={"text": FOREIGN, "value": value},
        script=script,
    )


def test_what_is_foreign_ends_no_element() -> None:
    text = page()
    # Plotly's own source has none of it.
    assert "alert(1)</script>" not in text
    assert len(re.findall("<script>", text)) == 2
    assert text.count("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;") == 5


def test_scripts_are_allowed_by_hash_and_share_a_scope() -> None:
    text = page()
    own = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    assert own.startswith('(function () {\n"use strict";\n')
    assert "function addTable(" in own
    assert own.endswith("start();\n})();")
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert f"'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert "unsafe-inline" not in policy[1].partition("style-src")[0]


def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        page(value=float("nan"))


@given(JSON_VALUES)
def test_data_comes_back_as_it_was_and_ends_no_script(value: object) -> None:
    text = frame.to_json(value)
    assert "<" not in text
    assert json.loads(text) == value


def test_paragraphs_and_items_are_escaped() -> None:
    assert frame.paragraphs("a <b>\nc") == "<p>a &lt;b&gt;</p><p>c</p>"
    assert frame.items(["a & b", "c"]) == "<li>a &amp; b</li><li>c</li>"
    assert frame.paragraphs("") == ""


def test_a_page_replaces_a_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / f"{'p' * 250}.html"
    path.write_text("old")
    assert frame.write_page(path, "new ä") == path
    assert path.read_text(encoding="utf-8") == "new ä"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == [path.name]


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"cannot write the page .*No space left on device; name another file"):
        frame.write_page(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_place_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*; make it, or name another file"):
        frame.refuse_place(tmp_path / "missing" / "page.html")
    with pytest.raises(ValueError, match="it is no file; name another"):
        frame.refuse_place(tmp_path)
    frame.refuse_place(tmp_path / "page.html")
