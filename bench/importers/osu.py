"""Reads the tables of the OSU micro-benchmarks (3.x to 7.x), in logs of any launcher."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.importers.contents import Contents, Source, as_int, as_number, line_ranges, plain_value, quoted
from bench.importers.definitions import (
    OSU_BANDWIDTH,
    OSU_COMMUNICATION,
    OSU_LATENCY,
    OSU_MESSAGE_RATE,
    OSU_OVERALL,
    OSU_OVERLAP,
    OSU_PERCENTILE,
)
from bench.importers.streams import streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.definitions import Definition
    from bench.importers.streams import Line
    from bench.store.row import Status

MEGA = 1000
"""From OSU's MB/s, which are 1e6 bytes a second, to GB/s."""


def _as_it_is(number: float) -> float:
    return number


COLUMNS: dict[str, tuple[str, Definition, Callable[[float], float]]] = {
    "latency(us)": ("latency", OSU_LATENCY, _as_it_is),
    "avglatency(us)": ("latency", OSU_LATENCY, _as_it_is),
    "bandwidth(mb/s)": ("bandwidth", OSU_BANDWIDTH, lambda number: number / MEGA),
    "mb/s": ("bandwidth", OSU_BANDWIDTH, lambda number: number / MEGA),
    "messages/s": ("message_rate", OSU_MESSAGE_RATE, _as_it_is),
    "overall(us)": ("overall_time", OSU_OVERALL, _as_it_is),
    "purecomm.(us)": ("communication_time", OSU_COMMUNICATION, _as_it_is),
    "overlap(%)": ("overlap", OSU_OVERLAP, lambda number: number / 100),
}
"""By heading without blanks and in lower case: the metric, its definition, and the value in its unit."""

RANK_COLUMNS = {"minlatency(us)": "rank_min", "maxlatency(us)": "rank_max"}
PARTS = ("compute(us)", "coll.init(us)", "mpi_test(us)", "mpi_wait(us)", "iterations", "mincomm.(us)", "maxcomm.(us)")
"""Columns without a row: the load that the tool sets itself, the parts that an overall time is made of."""

_TITLE = re.compile(r"#\s*OSU\s+([A-Za-z]+)(?:-(\w+))?[ _](.+?)(?:\s+Test)?\s+v(\d[\w.]*)\s*$")
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)tail(?:lat|bw)?(?:\(us\))?")
_BRACKETS = re.compile(r"\[\s*([^:\]]+?)\s*:\s*([^\]]+?)\s*\]")
_SETTING = re.compile(r"#\s*([A-Za-z][\w -]*?)\s*:\s*(\S.*?)\.?\s*$")
_NUMBERS = re.compile(r"\s*\d[\d.]*(?:\s+\S+)*\s*$")


@dataclass
class _Test:
    """A start of a benchmark: its parameters, the table's headings, and how many lines it had."""

    line: int
    launch: int
    params: dict[str, Any]
    columns: list[str] = field(default_factory=list)
    rows: int = 0
    after: str = ""


def read(source: Source) -> Contents:
    """All tables of a log."""
    contents = Contents("osu")
    reader = _Reader(contents)
    for lines in streams(source.text).values():
        reader.read(lines)
    reader.finish()
    if contents.rows and not source.text.endswith(("\n", "\r")):
        contents.note("the last line has no end: if the file is cut, so may be its last number")
    if "ranks" not in source.options and contents.rows:
        contents.note("OSU's tables do not say how many ranks took part; --set ranks=N tells")
    return contents


class _Reader:
    """Reads the streams of a log one after the other; each may hold several tests."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._test: _Test | None = None
        self._tests = 0
        self._versions: list[str] = []
        self._other_lines: list[int] = []

    def read(self, lines: list[Line]) -> None:
        for line in lines:
            self._read_line(line)
        self._end_test()

    def finish(self) -> None:
        """Say what the file as a whole lacks."""
        contents = self._contents
        if not self._tests:
            contents.fault(1, "no table of OSU micro-benchmarks is in the file (a line '# OSU MPI ... Test v7.5')")
        if self._versions:
            contents.identity["harness"] = f"osu-micro-benchmarks {self._versions[0]}"
        if len(set(self._versions)) > 1:
            contents.note(f"the file has tables of several versions: {', '.join(dict.fromkeys(self._versions))}")
        if self._other_lines:
            contents.note(f"{line_ranges(sorted(self._other_lines))}: no part of a table, not read")

    def _read_line(self, line: Line) -> None:
        text = line.text.strip()
        if not text.strip("# "):
            return
        if match := _TITLE.search(text):
            self._end_test()
            self._begin_test(line, *match.groups())
        elif self._is_headings(text):
            if self._test is None:
                self._contents.fault(line.number, f"headings without a line '# OSU ... Test v' before: {quoted(text)}")
            else:
                self._read_headings(line)
        elif text.startswith("#"):
            self._read_setting(text)
        elif self._test is not None and self._test.columns and _NUMBERS.match(text):
            self._read_data(line)
        elif self._test is None and re.fullmatch(r"\d+(\s+\d+\.\d+)+", text):
            self._contents.fault(line.number, f"a line of a table without headings: {quoted(text)}")
        else:
            if self._test is not None and not self._test.after:
                self._test.after = f"line {line.number} says {quoted(text, 100)}"
            self._other_lines.append(line.number)

    def _begin_test(self, line: Line, runtime: str, memory: str | None, test: str, version: str) -> None:
        self._tests += 1
        params: dict[str, Any] = {"test": test, "runtime": runtime}
        if memory:
            params["memory"] = memory.lower()
        self._test = _Test(line.number, self._tests, params)
        self._versions.append(version)

    def _is_headings(self, text: str) -> bool:
        """The first heading is known, and no cell is a number; 'Overall(us)' of a barrier has no # before it."""
        cells = _cells(text)
        known = [cell for cell in cells if cell == "size" or _is_known(cell)]
        return bool(cells) and (cells[0] == "size" or _is_known(cells[0])) and len(known) * 2 > len(cells)

    def _read_headings(self, line: Line) -> None:
        assert self._test is not None
        self._test.columns = _cells(line.text.strip())
        for column in self._test.columns:
            if column in PARTS:
                self._contents.note(f"the column {column} is left out: it is a part or a setting, not a result")
            elif not _is_known(column) and column != "size":
                self._contents.fault(line.number, f"unknown column {quoted(column)}: its numbers are not read")

    def _read_setting(self, text: str) -> None:
        """What stands between the title and the headings decides the number: datatype, pairs, window, ..."""
        if self._test is None or self._test.columns:
            return
        found = _BRACKETS.findall(text)
        if not found and (match := _SETTING.fullmatch(text)):
            found = [match.groups()]
        for name, value in found:
            key = "dtype" if name.lower() == "datatype" else re.sub(r"\W+", "_", name.strip().lower())
            number = as_int(value)
            self._test.params[key] = number if number is not None else value

    def _read_data(self, line: Line) -> None:
        test = self._test
        assert test is not None
        cells = line.text.split()
        if len(cells) != len(test.columns):
            self._contents.fault(
                line.number,
                f"{len(cells)} columns where the headings have {len(test.columns)}: {quoted(line.text.strip())}",
            )
            return
        by_column = dict(zip(test.columns, cells, strict=True))
        params = dict(test.params)
        if "size" in by_column:
            size = as_int(by_column["size"])
            if size is None:
                self._contents.fault(line.number, f"{quoted(by_column['size'])} is no size in bytes")
                return
            params["bytes"] = size
        test.rows += 1
        status, reason = _validated(by_column.get("validation"))
        ranks = {RANK_COLUMNS[name]: as_number(cell) for name, cell in by_column.items() if name in RANK_COLUMNS}
        for column, cell in by_column.items():
            if column in COLUMNS:
                metric, definition, convert = COLUMNS[column]
                of_ranks = ranks if metric == "latency" else {}
                self._add(metric, definition, params, cell, convert, status, reason, of_ranks)
            elif match := _PERCENTILE.fullmatch(column):
                percentile = {**params, "percentile": plain_value(as_int(match.group(1)) or match.group(1))}
                self._add("latency_percentile", OSU_PERCENTILE, percentile, cell, _as_it_is, status, reason, {})

    def _add(
        self,
        metric: str,
        definition: Definition,
        params: dict[str, Any],
        cell: str,
        convert: Callable[[float], float],
        status: Status,
        reason: str,
        ranks: dict[str, float | None],
    ) -> None:
        assert self._test is not None
        number = as_number(cell)
        if cell.upper() == "N/A":
            status, reason = "skipped", "the tool has N/A here"
        elif status == "ok" and number is None:
            status, reason = "failed", f"the file has {quoted(cell)} for {metric}"
        self._contents.add(
            metric,
            definition,
            params,
            None if number is None else convert(number),
            status=status,
            reason=reason,
            launch=self._test.launch,
            rank_min=ranks.get("rank_min"),
            rank_max=ranks.get("rank_max"),
        )

    def _end_test(self) -> None:
        test, self._test = self._test, None
        if test is not None and not test.rows:
            why = f" ({test.after})" if test.after else ""
            self._contents.fault(test.line, f"the table of {quoted(test.params['test'])} has no line of numbers{why}")


def _cells(text: str) -> list[str]:
    """Headings stand two blanks or more apart, and have single blanks inside."""
    return [re.sub(r"\s", "", cell).lower() for cell in re.split(r"\s{2,}", text.lstrip("# ").strip())]


def _is_known(cell: str) -> bool:
    return (
        cell in COLUMNS
        or cell in RANK_COLUMNS
        or cell in PARTS
        or cell == "validation"
        or bool(_PERCENTILE.fullmatch(cell))
    )


def _validated(cell: str | None) -> tuple[Status, str]:
    if cell is None or cell.lower() in ("pass", "passed", "skipped", "n/a"):
        return "ok", ""
    return "failed", f"the tool's own validation says {quoted(cell)}"
