"""What a file of another tool holds: rows, what could not be read, and what it tells of its machine."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.store.row import Row
from bench.suite import Case

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.definitions import Definition
    from bench.store.row import Status, Value

INT64 = 2**63
NEVER_NEGATIVE = ("s", "ms", "us", "ns", "GB/s", "1/s")
"""Units of durations and rates; a change of memory, an overlap or a counter may be below zero."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
LONGEST_RANGE_LISTED = 3
"""Lines that are no part of any table are named one by one up to this many, else by first, last and number."""


@dataclass(frozen=True)
class Source:
    """A file to read.

    Attributes:
        name: as the user wrote it; ``-`` for standard input.
        text: its content.
        path: where it lies, for files beside it; None for standard input.
        options: parameters that the user adds to every row; an importer may need one (nccl-tests' ``op``).
    """

    name: str
    text: str
    path: Path | None = None
    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """Something that should have become a row and did not: the line, from 1, and what is wrong with it."""

    line: int
    what: str


@dataclass
class Contents:
    """All that was found in a file.

    Attributes:
        suite: the rows' suite, which is the tool's name.
        rows: without run and number; a metric may come several times in a case until ``pool`` joins them.
        launches: for each row, which start of the tool it comes from; those of one start are not independent.
        faults: what could not be read.
        notes: what was left out on purpose, or what the file does not tell, a line each.
        identity: what the file tells of its machine and software, as far as it decides how fast they are.
        tells_machine: whether that is enough to know the machine by.
        volatile: host names, clock rates, and other things that explain a number and are never compared.
        started_at: UTC, ISO 8601; empty where the file does not tell.
        commit: of the code that was measured; empty where the file does not tell.
        dirty: whether that code had changes beside the commit.
    """

    suite: str
    rows: list[Row] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    tells_machine: bool = False
    volatile: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    commit: str = ""
    dirty: bool = False

    def add(
        self,
        metric: str,
        definition: Definition,
        params: Mapping[str, Any],
        value: object,
        *,
        samples: Sequence[float] | None = None,
        n: int | None = None,
        status: Status = "ok",
        reason: str = "",
        wrong: int | None = None,
        method_version: int = 1,
        warmup: int = 0,
        started_at: str = "",
        rank_min: float | None = None,
        rank_max: float | None = None,
        launch: int = 0,
    ) -> None:
        """Add a number of the file as a row. What is no finite number becomes a failed row that quotes it.

        So does a duration or a rate, or a sample of one, that is below zero.

        Args:
            value: in the definition's unit.
            samples: None makes the value itself the only sample; empty means that the file has ``n`` of them
                summed up in the value and does not list them.
            status, reason: of a row without a number.
        """
        number = as_number(value)
        if status == "ok" and number is None:
            status, reason = "failed", f"the file has {quoted(value)} for a value"
        if status == "ok" and samples is not None and not all(map(math.isfinite, samples)):
            status, reason = "failed", "a sample in the file is no finite number"
        least = min([*(samples or ()), math.inf if number is None else number])
        if status == "ok" and definition.unit in NEVER_NEGATIVE and least < 0:
            status, reason = "failed", f"the file has {quoted(least)} {definition.unit}, which is below zero"
        plain = {str(name): plain_value(item) for name, item in params.items()}
        kept = [number] if samples is None else list(samples)
        row = Row(
            run_id="",
            row_id=0,
            suite=self.suite,
            method_version=method_version,
            case=Case(plain).id,
            params=plain,
            metric=metric,
            unit=definition.unit,
            better=definition.better,
            definition=definition.id,
            value=number if status == "ok" else None,
            status=status,
            reason=reason,
            wrong=wrong,
            started_at=started_at,
        )
        if status == "ok":
            row.samples = [sample for sample in kept if sample is not None]
            row.n = len(row.samples) or max(n or 0, 0)
            row.warmup, row.rank_min, row.rank_max = warmup, rank_min, rank_max
        self.rows.append(row)
        self.launches.append(launch)

    def fault(self, line: int, what: str) -> None:
        """Something that should have become a row and did not."""
        self.faults.append(Fault(line, what))

    def note(self, text: str) -> None:
        """Something to say once."""
        if text not in self.notes:
            self.notes.append(text)


def as_number(value: object) -> float | None:
    """A finite float from a number or from text that holds one (``nan`` does not); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_int(value: object) -> int | None:
    """A whole number of at most 64 bits, also from a float or text that is one; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -INT64 <= value < INT64 else None
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return as_int(int(value))
    number = as_number(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < INT64 else None


def as_samples(values: Sequence[object], summary: object) -> tuple[list[float], object, str]:
    """Samples of a list in a file, what stands for their value, and why they are no measurement.

    Returns:
        all elements if they are finite numbers, and their median; none and the summary if none of them is and the
        summary is finite and positive; else a reason why the row failed, empty in the other cases. None and the
        summary too of an empty list.
    """
    numbers = [number for value in values if (number := as_number(value)) is not None]
    bad = len(values) - len(numbers)
    if not bad:
        return numbers, median(numbers) if numbers else summary, ""
    summed = as_number(summary)
    if not numbers and summed is not None and summed > 0:
        return [], summary, ""
    first = next(value for value in values if as_number(value) is None)
    return [], None, f"{bad} of {len(values)} samples are no finite numbers, such as {quoted(first)}"


def as_list(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def plain_value(value: object) -> Value:
    """A parameter as a row can hold it; what is neither text, number nor bool becomes JSON text."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -INT64 <= value < INT64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return json.dumps(value, sort_keys=True, default=str)


def quoted(value: object, most: int = 60) -> str:
    """A value of the file in one short line, with anything that a terminal would act on escaped."""
    text = ascii(value)
    return text if len(text) <= most else f"{text[:most]}..."


def utc(text: object) -> str:
    """A date of a file as ISO 8601 in UTC; one without a zone is taken for UTC. Empty for what is no date."""
    try:
        moment = datetime.fromisoformat(str(text).strip())
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return ""
    return moment.isoformat(timespec="milliseconds")


def utc_of_milliseconds(value: object) -> str:
    """The same for milliseconds since 1970."""
    number = as_number(value)
    try:
        return "" if number is None else datetime.fromtimestamp(number / 1e3, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""


def line_ranges(lines: Sequence[int]) -> str:
    """Line numbers in rising order for a reader: ``7``, ``3, 9-14``, or how many between which."""
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    if len(ranges) > LONGEST_RANGE_LISTED:
        return f"{len(lines)} lines between {lines[0]} and {lines[-1]}"
    return "line " + ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
