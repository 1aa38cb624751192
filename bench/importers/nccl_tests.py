"""Reads nccl-tests and rccl-tests: their tables, in logs of any launcher, and the JSON of ``-J``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.importers import nccl_json
from bench.importers.contents import Contents, Source, as_int, as_number, line_ranges, quoted
from bench.importers.nccl_case import COLUMNS, PLACEMENTS, World, case_params, judge, op_of, refined
from bench.importers.streams import streams

if TYPE_CHECKING:
    from bench.importers.streams import Line
    from bench.store.row import Status

UNITS = {
    "size": "B",
    "count": "elements",
    "time": "us",
    "cputime": "us",
    "algbw": "GB/s",
    "busbw": "GB/s",
    "i_min": "us",
    "i_max": "us",
    "i_p99": "us",
    "i_cv%": "%",
}
"""The unit that a column must have; the line below the headings tells it."""
DESCRIPTIONS = ("size", "count", "type", "redop", "root")
MEASURES = ("time", "cputime", "algbw", "busbw", "error", "#wrong", "i_min", "i_max", "i_p99", "i_cv%")

_HEADINGS = re.compile(r"#\s+size\s+count\b")
_DATA = re.compile(r"\s*\d+\s+\d+\s+[A-Za-z]\w*\s")
_LIKE_DATA = re.compile(r"\s*\d{1,19}(\s+\d+){1,2}(\s+[\w.+-]+){4,}\s*$")
_BLANK_HALF = re.compile(r" {24,}")
_OPTIONS = re.compile(r"#\s*nThread:?\s+(\d+)\s+nGpus:?\s+(\d+)\b.*?warm-?up\s*[Ii]ters:\s+(\d+)")
_VERSION = re.compile(r"#\s*(nccl|rccl)-tests version\s+(\S+)(?:.*?(?:nccl|rccl)-library=(\d+))?")
_STARTING = re.compile(r"#\s*Collective test starting:\s+(\S+)")
_CONCLUDED = re.compile(r"#\s*Collective test concluded:")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_COMMAND = re.compile(r"(?:^|[/\s])(\w+)_perf(?:_mpi)?\s+-")
_BROKEN = re.compile(
    r"Test (?:CUDA|NCCL|HIP|RCCL) failure|Test failure|Test timeout|NCCL failure|\*\*\* Process received"
)


@dataclass
class _Table:
    """A table as far as it is read: where it begins, its columns by placement, and its rows in ``Contents``."""

    line: int
    columns: list[str]
    rows: range
    checked: bool = False


@dataclass
class _Launch:
    """A start of the tool: what the lines before its table say."""

    number: int
    op: str = ""
    has_options: bool = False
    warmup: int = 0
    world: World = field(default_factory=World)


def read(source: Source) -> Contents:
    """All tables of a log, or all results of a JSON file."""
    contents = Contents("nccl-tests")
    if source.text.lstrip("\ufeff \t\r\n").startswith("{"):
        nccl_json.read(source, contents)
        return contents
    reader = _Reader(source, contents)
    for lines in streams(source.text).values():
        reader.read(lines)
    reader.finish()
    return contents


class _Reader:
    """Reads the streams of a log one after the other; each may hold several starts of the tool."""

    def __init__(self, source: Source, contents: Contents) -> None:
        self._contents = contents
        self._given_op = str(source.options.get("op", ""))
        self._launch = _Launch(0)
        self._table: _Table | None = None
        self._other_lines: list[int] = []
        self._tables = 0
        self._command_op = ""
        self._broke: list[str] = []

    def read(self, lines: list[Line]) -> None:
        self._begin_launch()
        for line in lines:
            self._read_line(line)
        self._end_table(concluded=False)

    def finish(self) -> None:
        """Say what the file as a whole lacks."""
        if not self._tables:
            self._contents.fault(1, "no table of nccl-tests is in the file (a line '# size count type ... busbw')")
        if self._other_lines:
            self._contents.note(f"{line_ranges(sorted(self._other_lines))}: no part of a table, not read")

    def _begin_launch(self) -> None:
        self._launch = _Launch(self._launch.number + 1)
        self._command_op, self._broke = "", []

    def _read_line(self, line: Line) -> None:
        text = line.text
        if not text.strip(" #"):
            return
        if "#" in text and self._read_header(text):
            return
        start = text.lstrip()
        if start.startswith("#") and _HEADINGS.match(start):
            self._end_table(concluded=False)
            self._begin_table(line)
        elif start.startswith("#"):
            self._read_comment(line)
        elif _DATA.match(text):
            self._read_data(line)
        elif self._table and _LIKE_DATA.match(text):
            self._contents.fault(line.number, f"looks like a line of the table and is none: {quoted(text.strip())}")
        else:
            if "_perf" in text and (match := _COMMAND.search(text)):
                self._command_op = match.group(1)
            if _BROKEN.search(text):
                self._broke.append(f"line {line.number} says {quoted(text.strip(), 100)}")
            self._other_lines.append(line.number)

    def _read_header(self, text: str) -> bool:
        """Take a line of what the tool says before its table; False if it is none."""
        if match := _VERSION.search(text):
            self._new_launch_if_begun()
            self._launch.world.set_version(match.group(1), match.group(2), match.group(3))
        elif match := _STARTING.search(text):
            self._new_launch_if_begun()
            self._launch.op = op_of(match.group(1))
        elif match := _OPTIONS.search(text):
            self._new_launch_if_begun()
            self._launch.has_options = True
            self._launch.warmup = int(match.group(3))
            self._launch.world.gpus_a_process = int(match.group(1)) * int(match.group(2))
        else:
            return self._launch.world.read_rank(text)
        return True

    def _new_launch_if_begun(self) -> None:
        """The lines before a table come in one order; one that comes again belongs to the next start."""
        if self._launch.has_options or self._table:
            self._end_table(concluded=False)
            self._begin_launch()

    def _begin_table(self, line: Line) -> None:
        columns = line.text.strip().lstrip("#").split()
        known = {*DESCRIPTIONS, *MEASURES, "timestamp"}
        if unknown := [column for column in columns if column not in known]:
            self._contents.fault(line.number, f"unknown column {quoted(unknown[0])}; the table below it is not read")
            columns = []
        start = len(self._contents.rows)
        self._table = _Table(line.number, columns, range(start, start))
        self._tables += 1
        self._launch.op = self._launch.op or op_of(self._command_op) or self._given_op
        if not self._launch.op:
            self._contents.fault(
                line.number, "nothing says which operation this table is of; name it with --set op=all_reduce"
            )
            self._table.columns = []

    def _read_comment(self, line: Line) -> None:
        if match := _OUT_OF_BOUNDS.search(line.text):
            if int(match.group(1)) and self._table and not self._table.checked:
                self._fail_table(f"{match.group(1)} value(s) out of bounds, line {line.number} says, not where")
            self._end_table(concluded=True)
        elif _CONCLUDED.search(line.text):
            self._end_table(concluded=True)
        elif "Avg bus bandwidth" in line.text:
            self._contents.note("the average bus bandwidth is left out: it is the mean over all sizes of the table")
            self._end_table(concluded=True)
        elif "(B)" in line.text and self._table:
            self._check_units(line)

    def _check_units(self, line: Line) -> None:
        """The line below the headings must have the units that the columns are taken for."""
        table = self._table
        assert table is not None
        found = re.findall(r"\(([^)]*)\)", line.text)
        expected = [UNITS[column] for column in table.columns if column in UNITS]
        if table.columns and found != expected:
            self._contents.fault(
                line.number, f"units {quoted(' '.join(found))} where {' '.join(expected)} are expected"
            )
            table.columns = []

    def _read_data(self, line: Line) -> None:
        if not self._table:
            self._contents.fault(line.number, f"a line of a table without headings: {quoted(line.text.strip())}")
            return
        columns, cells = self._table.columns, line.text.split()
        if not columns:
            return
        if difference := self._launch.world.report(self._contents):
            self._contents.fault(
                self._table.line, f"the table is of another machine ({difference}); put it into a file of its own"
            )
            self._table.columns = []
            return
        descriptions = [column for column in columns if column in DESCRIPTIONS]
        if columns[-1] == "timestamp":
            columns, cells = columns[:-1], cells[:-2] if ":" in cells[-1] else cells
        placed = (len(columns) - len(descriptions)) // 2
        if len(cells) == len(columns) - placed and _BLANK_HALF.search(line.text.rstrip()):
            # A replayed trace measures in place only, and leaves the other half blank; a line cut short does not.
            halves = {PLACEMENTS[1]: cells[-placed:]}
        elif len(cells) == len(columns):
            halves = {PLACEMENTS[0]: cells[-2 * placed : -placed], PLACEMENTS[1]: cells[-placed:]}
        else:
            self._contents.fault(
                line.number, f"{len(cells)} columns where the headings have {len(columns)}: {quoted(line.text.strip())}"
            )
            return
        described = dict(zip(descriptions, cells, strict=False))
        names = columns[len(descriptions) : len(descriptions) + placed]
        for placement, values in halves.items():
            self._add(line, described, placement, dict(zip(names, values, strict=True)))
        self._table.rows = range(self._table.rows.start, len(self._contents.rows))

    def _add(self, line: Line, described: dict[str, str], placement: str, cells: dict[str, str]) -> None:
        """The rows of one placement of a line."""
        assert self._table is not None
        params = case_params(self._launch.op, described, placement, self._launch.world)
        self._table.checked = "#wrong" in cells
        wrong = as_int(cells.get("#wrong"))
        status, reason = judge(wrong, self._launch.world)
        for name, metric, definition in COLUMNS:
            if name not in cells:
                continue
            value = refined(name, cells, params)
            if value == "N/A":
                outcome: tuple[Status, str] = ("skipped", "the tool has N/A here")
            elif status == "ok" and as_number(value) is None:
                outcome = ("failed", f"the file has {quoted(value)} for {name}")
            else:
                outcome = (status, reason)
            self._contents.add(
                metric,
                definition,
                params,
                value,
                status=outcome[0],
                reason=outcome[1],
                wrong=wrong,
                warmup=self._launch.warmup,
                launch=self._launch.number,
            )

    def _fail_table(self, reason: str) -> None:
        assert self._table is not None
        for row in self._contents.rows[self._table.rows.start : self._table.rows.stop]:
            row.status, row.reason, row.value, row.n, row.samples = "failed", reason, None, 0, []

    def _end_table(self, concluded: bool) -> None:
        table, self._table = self._table, None
        if table is None or not table.columns:
            return
        lines = len(table.rows)
        if not concluded:
            why = f" ({self._broke[0]})" if self._broke else ""
            kept = f"its {lines} number(s) are kept" if lines else "it has no number"
            self._contents.fault(
                table.line, f"the table has no end: the run broke off, or the file is cut{why}; {kept}"
            )
        elif not lines:
            self._contents.fault(table.line, "the table has no line that can be read")
