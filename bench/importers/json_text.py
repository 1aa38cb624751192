"""JSON documents in files that may have log lines around them, and the line of each entry."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from bench.importers.contents import quoted

if TYPE_CHECKING:
    from bench.importers.contents import Contents

_NEGATIVE_NAN = re.compile(r"(:\s*)-NaN\b")
_DECODER = json.JSONDecoder()


class Document:
    """A JSON document of a file.

    Attributes:
        data: what it holds.
        line: where it begins.
    """

    def __init__(self, text: str, data: Any, line: int) -> None:
        self._text = text
        self.data = data
        self.line = line

    def lines_of(self, key: str) -> list[int]:
        """The line of each element of the first array, or member of the first object, of that key.

        Empty if the text cannot be followed; the document's own line does then.
        """
        opening = re.search(rf'"{re.escape(key)}"\s*:\s*([\[{{])', self._text)
        if not opening:
            return []
        text, at = self._text, opening.end()
        lines: list[int] = []
        counted, line = 0, self.line
        try:
            while True:
                at = _skip(text, at)
                if text[at] in "]}":
                    return lines
                line, counted = line + text.count("\n", counted, at), at
                lines.append(line)
                if opening.group(1) == "{":
                    _, at = _DECODER.raw_decode(text, at)
                    at = _skip(text, at) + 1
                _, at = _DECODER.raw_decode(text, _skip(text, at))
                at = _skip(text, at)
                at += text[at] == ","
        except (ValueError, IndexError, RecursionError):
            return []


def documents(text: str, contents: Contents) -> list[Document]:
    """All JSON objects of a text that begin a line; what else is there becomes a note, and a broken one a fault."""
    # google/benchmark writes -NaN, which is no JSON in any dialect.
    text = _NEGATIVE_NAN.sub(r"\1NaN", text.removeprefix("\ufeff"))
    found: list[Document] = []
    at, others, first_other = 0, 0, 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        begins = text[at:end].lstrip()
        if not begins.startswith("{"):
            if begins:
                others += 1
                first_other = first_other or text.count("\n", 0, at) + 1
            at = end + 1
            continue
        line = text.count("\n", 0, at) + 1
        start = _skip(text, at)
        document = _decode(text, start, line, contents)
        if document is None:
            break
        found.append(document[0])
        at = document[1]
    if others:
        contents.note(f"line {first_other}: {others} line(s) around the JSON are not read")
    if not found and not contents.faults:
        contents.fault(1, "no JSON object begins on any line; the tool's JSON output is needed")
    return found


def _decode(text: str, start: int, line: int, contents: Contents) -> tuple[Document, int] | None:
    """The document that begins at ``start`` and the place behind it."""
    try:
        data, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        contents.fault(error.lineno, f"not JSON: {error.msg} (column {error.colno}); is the file cut off?")
    except (RecursionError, ValueError) as error:
        contents.fault(line, f"not JSON that can be read: {quoted(str(error))}")
    else:
        return Document(text[start:end], data, line), end
    return None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
