"""The frame of every page of ours: one file with its styles, data and scripts, which asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.report.markup import Markup, element, joined
from bench.report.payload import to_json
from bench.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from bench.report.markup import Child


def document(
    *,
    title: str,
    subtitle: Child,
    headline: Child,
    navigation: Markup,
    body: Markup,
    summary: str = "the summary",
    styles: Sequence[tuple[str, str]] = (),
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
) -> str:
    """A page as one HTML document.

    Args:
        headline: what the page says in a line, below its title.
        body: its sections; the one with the id ``summary`` is where keyboards skip to.
        summary: that section in words.
        styles: package and name of style sheets beside the report's own.
        data: for the scripts, as JSON in the element ``data``.
        scripts: texts of scripts, run in this order.
    """
    sheets = [asset("bench.report", "report.css"), *(asset(package, name) for package, name in styles)]
    parts = [] if data is None else [f'<script type="application/json" id="data">{to_json(data)}</script>']
    parts += [f"<script>{script}</script>" for script in scripts]
    return Template(asset("bench.report", "document.html")).substitute(
        policy=content_policy(scripts),
        title=joined([title]),
        styles="".join(sheets),
        summary=joined([summary]),
        navigation=navigation,
        subtitle=joined([subtitle]),
        headline=joined([headline]),
        body=body,
        scripts="\n".join(parts),
    )


def write_document(path: Path, text: str) -> Path:
    """Write a page to ``path``, making its folder; a reader never sees a part of the file.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise BenchError(
            f"cannot write the page {path}: {error.strerror or error}; name another file or folder"
        ) from None
    return path


def asset(package: str, name: str) -> str:
    """The text of a file that lies beside a package's modules."""
    return (files(package) / name).read_text(encoding="utf-8")


def own_script(package: str, *names: str) -> str:
    """Scripts of ours as one, strict and without global names."""
    return '(function () {\n"use strict";\n' + "\n".join(asset(package, name) for name in names) + "\n})();"


def links(targets: Iterable[tuple[str, str, str]]) -> Markup:
    """Navigation: a link for each (id, text, count); an empty count is left out."""
    return joined(
        element("a", element("span", text), element("small", count) if count else None, href=f"#{target}")
        for target, text, count in targets
    )


def section(name: str, title: str, *content: Child) -> Markup:
    """A section with a heading, by which navigation finds it."""
    return element("section", element("h2", title), *content, id=name)


def legend(meanings: Iterable[tuple[str, str]]) -> Markup:
    """What words and marks of the page mean."""
    return element(
        "dl", *(joined([element("dt", name), element("dd", text)]) for name, text in meanings), class_="legend"
    )


def content_policy(scripts: Sequence[str]) -> str:
    """A content security policy that runs these scripts and nothing else, and never asks a network.

    Texts of rows are escaped; should one ever get through, the browser still refuses to run it.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "form-action 'none'; base-uri 'none'"
    )
