"""The frame of the core's pages: policy, styles, navigation, data and scripts, and how a page is written whole."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from contextlib import suppress
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

PACKAGE = "ciera_piper_core.page"

NAME_SHOWN = 100
"""Characters of the name that the temporary file bears; a name may fill its whole length already."""


def document(
    *,
    title: str,
    subtitle: Sequence[str],
    verdict: str,
    sections: Iterable[tuple[str, str]],
    body: str,
    data: Mapping[str, Any],
    script: str,
) -> str:
    """A page as one HTML document.

    Args:
        title: of window and page.
        subtitle: lines below the title.
        verdict: lines of what the page says; the first stands out.
        sections: id and text of each link of the navigation.
        body: the sections as HTML; whoever makes it escapes what is foreign in it.
        data: what the script draws, as plain values with finite numbers, in the constant ``data``.
        script: JavaScript of this page; it runs after ``draw.js``, whose functions it uses, and calls ``start()``.

    Raises:
        ValueError: a number of ``data`` is not finite.
    """
    from plotly.offline import get_plotlyjs

    own = "\n".join((asset(PACKAGE, "draw.js"), script))
    scripts = [get_plotlyjs(), f'(function () {{\n"use strict";\n{own}\n}})();']
    return Template(asset(PACKAGE, "frame.html")).substitute(
        policy=content_policy(scripts),
        title=escape(title),
        styles=asset(PACKAGE, "frame.css"),
        navigation="\n".join(f'<a href="#{escape(name)}">{escape(text)}</a>' for name, text in sections),
        subtitle="<br>".join(escape(line) for line in subtitle),
        verdict=paragraphs(verdict),
        body=body,
        data=to_json(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def write_page(path: Path, text: str) -> Path:
    """Write a page to ``path``: write, fsync, rename, so that a reader never sees a part of the file.

    Raises:
        ValueError: the file cannot be written.
    """
    refuse_place(path)
    try:
        _replace(path, text)
    except OSError as error:
        raise ValueError(f"cannot write the page {path}: {error.strerror or error}; name another file") from None
    return path


def refuse_place(path: Path) -> None:
    """Nothing, if a page may be written there.

    Raises:
        ValueError: its folder is missing, or something that is no file has the name.
    """
    if not path.parent.is_dir():
        raise ValueError(
            f"cannot write the page {path}: there is no folder {path.parent}; make it, or name another file"
        )
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write the page {path}: it is no file; name another")


def asset(package: str, name: str) -> str:
    """The text of a file that lies beside a package's modules."""
    return (files(package) / name).read_text(encoding="utf-8")


def paragraphs(text: str) -> str:
    """Each line as an escaped paragraph."""
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())


def items(lines: Iterable[str]) -> str:
    """Each line as an escaped item of a list."""
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def content_policy(scripts: Sequence[str]) -> str:
    """A content security policy that runs these scripts and nothing else, and never asks a network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "form-action 'none'; base-uri 'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; {rest}"


def to_json(value: Any) -> str:
    """JSON that cannot end the script element that it stands in.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:NAME_SHOWN]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
