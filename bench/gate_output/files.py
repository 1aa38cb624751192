"""Puts the gate's outputs where they were asked for: places are checked before anything is measured, then written."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UsageError
from bench.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.gate_result import GateResult

Outputs = tuple[tuple[str, str], ...]
"""Names of outputs (``json``, ``markdown``, ``junit``, ``html``) with the file of each; ``-`` is standard output."""


def refuse_unwritable(outputs: Outputs) -> None:
    """Refuse the places that nothing can be written to, all of them in one line.

    Raises:
        UsageError: a folder, a file or folder without the right to write, or no folder to write into.
    """
    wrong = [f"--{name} {target}: {trouble}" for name, target in outputs if (trouble := _trouble(name, target))]
    if wrong:
        raise UsageError(f"cannot write {'; '.join(wrong)}")


def write_outputs(outputs: Outputs, result: GateResult) -> list[str]:
    """Write every output that can be written.

    Returns:
        what could not be written and why, a line each.
    """
    troubles = []
    for name, target in outputs:
        try:
            _write(name, target, result)
        except (OSError, ValueError) as error:
            place = "standard output" if target == "-" else target
            troubles.append(f"cannot write --{name} to {place}: {getattr(error, 'strerror', None) or error}")
    return troubles


def _trouble(name: str, target: str) -> str:
    """Why nothing can be written there; empty if it can."""
    if target == "-":
        return ""
    if not target:
        return "the name is empty; name a file"
    if "\0" in target:
        return "no name holds a zero byte"
    path = Path(target)
    try:
        if path.is_dir():
            return "it is a folder; name a file in it"
        if not path.parent.is_dir():
            return f"there is no folder {path.parent}; make it first"
        # A file is replaced by way of another in its folder; only a pipe, a device and Markdown are written in place.
        in_place = path.exists() and (name == "markdown" or not path.is_file())
        if not os.access(path if in_place else path.parent, os.W_OK):
            return f"no right to write {'it' if in_place else f'into {path.parent}'}"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _write(name: str, target: str, result: GateResult) -> None:
    """Write one output. Markdown is added to what is there, as a job's summary wants it; the others replace it."""
    text = _renderer(name)(result)
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    if name == "markdown":
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        return
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    """Write a file so that nobody ever reads a part of it."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a pipe or a device
        return
    write_whole(path, text)


def _renderer(name: str) -> Callable[[GateResult], str]:
    from bench.gate_output import as_json, html, junit, markdown

    return {"json": as_json.render, "markdown": markdown.render, "junit": junit.render, "html": html.render}[name]


def to_stdout(outputs: Outputs) -> Sequence[str]:
    """The options whose output goes to standard output."""
    return [f"--{name}" for name, target in outputs if target == "-"]
