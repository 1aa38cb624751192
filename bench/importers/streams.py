"""Takes a log apart: marks of launchers and loggers off each line, and the output of each rank by itself."""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_MARKS = 4
"""A line carries a date, a container's name and a rank at most; more would be content."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_DATE = re.compile(r"\ufeff?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[ \t]")
_MARK = re.compile(
    "|".join(
        (
            # Open MPI: [1,0]<stdout>: and [prterun-host-12@1,0]<stdout>:
            r"\[(?:[^\]\s]*@)?\d+,\d+\](?:\[[^\]]*\])?<std(?:out|err|diag)>: ?",
            # MPICH and Intel MPI: [0] and torchrun: [rank0]: (before a word, [0] is NCCL's own)
            r"\[rank\d+\]: ?|\[\d+\] (?=[#\s\d])",
            # kubectl --prefix
            r"\[(?:pod|container)/[\w./-]+\] ",
            # srun --label, right-aligned
            r" {0,4}\d+: ",
            # docker compose, stern
            r"\[?[\w./-]+\]?\s+\| ",
            # pdsh, clush: a host's name before what a table has
            r"[A-Za-z][\w.-]*: (?=\s*(?:#|\d))",
        )
    )
)


class Line(NamedTuple):
    """A line without marks: its number in the file, from 1, and its text."""

    number: int
    text: str


def streams(text: str) -> dict[str, list[Line]]:
    """The lines of each writer of a log, by the marks before its lines (empty: none)."""
    found: dict[str, list[Line]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        mark, rest = _split(_ESCAPES.sub("", line) if "\x1b" in line else line)
        found.setdefault(mark, []).append(Line(number, rest))
    return found


def _split(line: str) -> tuple[str, str]:
    marks = []
    for _ in range(MOST_MARKS):
        if date := _DATE.match(line):
            line = line[date.end() :]
        elif mark := _MARK.match(line):
            marks.append(mark.group().strip())
            line = line[mark.end() :]
        else:
            break
    return " ".join(marks), line
