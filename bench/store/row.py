"""The row, the one record that every measurement becomes, and the record of a run around it."""

from __future__ import annotations

import json
import math
import operator
import secrets
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from bench.errors import StoreError
from bench.shown_value import shown_value

SCHEMA_VERSION = 2
"""Version of the row and of the run record; a reader keeps reading older ones."""

Status = Literal["ok", "failed", "timeout", "invalid", "skipped"]
STATUSES: tuple[Status, ...] = get_args(Status)

UNMEASURED_FIRST: tuple[Status, ...] = ("failed", "timeout", "invalid", "skipped", "ok")
"""Of several attempts at one number, the first of these that one of them has is what became of it."""

Value = int | float | str | bool


@dataclass
class Row:
    """One metric of one case, measured or not. Failures are rows too.

    Attributes:
        run_id, row_id: the run and the row's number in it, from 0.
        suite, method_version: what was measured and in which way; another version, another series.
        case: canonical id of the parameters; params: the parameters themselves.
        metric, unit, better, definition: name, unit, direction, and id of the definition.
        value: the median over iterations of the slowest rank's numbers; None unless status is ok.
        n, samples: number of timed iterations and the value of each, in order.
        rounds: how many of the samples each round has, in order, where several groups of processes
            measured the case (``bench.measure.rounds``); empty where one did. Schema 2.
        rank_min, rank_median, rank_max: over ranks, of each rank's own median, as durations order
            them: ``rank_max`` belongs to ``slowest_rank``.
        entry_skew: microseconds between the first and the last rank's start, median over iterations.
        warmup: iterations before the first sample.
        stop_reason: why sampling ended (``bench.measure.sampling.StopReason``); empty if it never began.
        wrong: number of elements that differ from the oracle over all ranks; None if never checked.
        status, reason: outcome, and the cause of any but ok.
        seed: of the run. started_at: UTC, ISO 8601.
    """

    run_id: str
    row_id: int
    suite: str
    method_version: int
    case: str
    params: dict[str, Value]
    metric: str
    unit: str
    better: str
    definition: str
    value: float | None = None
    n: int = 0
    samples: list[float] = field(default_factory=list)
    rank_min: float | None = None
    rank_median: float | None = None
    rank_max: float | None = None
    slowest_rank: int | None = None
    entry_skew: float | None = None
    warmup: int = 0
    stop_reason: str = ""
    wrong: int | None = None
    status: Status = "ok"
    reason: str = ""
    seed: int = 0
    started_at: str = ""
    rounds: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The row's fields by name, in order."""
        return {name: getattr(self, name) for name in ROW_FIELDS}

    def to_json(self) -> str:
        """The row as one JSON line, without the newline, the same for equal rows.

        NaN and infinity never occur in it, nor do halves of surrogate pairs (an undecodable file
        name in a reason has some), which many JSON readers refuse: they become question marks.

        Raises:
            ValueError: the row is impossible, a number is not finite or beyond 64 bits, or a
                parameter cannot be JSON.
        """
        record = self.to_dict()
        try:
            self.validate()
            record["samples"] = [float(sample) for sample in self.samples]
            record["rounds"] = [_int64(count) for count in self.rounds]
            for name in FLOAT_FIELDS:
                record[name] = None if record[name] is None else float(record[name])
            for name in INT_FIELDS:
                record[name] = None if record[name] is None else _int64(record[name])
            line = encode_row(record)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.suite} {self.metric} of {self.case} cannot be stored: {error}") from None
        return _well_formed(line)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Row:
        """A row from a parsed line.

        Raises:
            StoreError: a field is missing, unknown or impossible.
        """
        try:
            return cls(**record)
        except (TypeError, ValueError) as error:
            raise StoreError(f"not a row of schema {SCHEMA_VERSION}: {error}") from None

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Refuse with a ValueError a number without success, or an outcome without its cause."""
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}")
        if self.status == "ok" and (self.value is None or not math.isfinite(self.value)):
            raise ValueError(f"an ok row needs a finite value, not {self.value!r}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"a row with status {self.status!r} needs a reason")
        if self.rounds and sum(self.rounds) != self.n:
            raise ValueError(f"rounds of {sum(self.rounds)} samples in all, but n is {self.n}")
        if not isinstance(self.params, dict):
            raise ValueError(f"params needs an object, not {shown_value(self.params)}")


ROW_FIELDS = tuple(f.name for f in fields(Row))
INT_FIELDS = ("row_id", "method_version", "n", "slowest_rank", "warmup", "wrong", "seed")
FLOAT_FIELDS = ("value", "rank_min", "rank_median", "rank_max", "entry_skew")

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode_row(record: dict[str, Any]) -> str:
    """A row's fields as one JSON line, without the newline."""
    return _ENCODER.encode(record)


def _int64(value: Any) -> int:
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} needs more than 64 bits")
    return number


def _well_formed(line: str) -> str:
    """A JSON line with question marks for lone surrogates; pairs are as much escaped, so a look tells too little."""
    return _ENCODER.encode(_without_lone_surrogates(json.loads(line))) if "\\ud" in line else line


def _without_lone_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    if isinstance(value, dict):
        return {_without_lone_surrogates(name): _without_lone_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_lone_surrogates(item) for item in value]
    return value


@dataclass
class RunRecord:
    """What is true of a whole run: first line of its JSONL file, metadata of its Parquet file.

    Attributes:
        run_id: sorts by start time.
        started_at: UTC, ISO 8601.
        command: the arguments after ``bench``, as typed.
        suites, preset, seed, lab: what was asked for.
        fingerprint: ``{"identity": {...}, "volatile": {...}}`` (``bench.environment``).
        writer: host, boot id and process id of the writer, to tell an open run from an orphan.
        cases: how many cases were asked for; a run with rows of fewer was interrupted.
        plan: everything needed to resume the run (``bench.session``).
    """

    run_id: str
    started_at: str
    command: list[str]
    suites: list[str]
    preset: str
    seed: int
    lab: str = ""
    fingerprint: dict[str, Any] = field(default_factory=dict)
    writer: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    cases: int = 0
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        """The record as one JSON line, without the newline; as strict as a row's.

        Raises:
            StoreError: it holds a number that is not finite, or what cannot be JSON.
        """
        try:
            return _well_formed(_ENCODER.encode(self.to_dict()))
        except (TypeError, ValueError) as error:
            raise StoreError(f"the record of run {self.run_id} cannot be stored: {error}") from None

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> RunRecord:
        """A record from a parsed header.

        Raises:
            StoreError: written by a newer version, or not a run's header; a field of another kind is named.
        """
        version = record.get("schema_version") if isinstance(record, dict) else None
        if type(version) is not int or "run_id" not in record:
            raise StoreError("not the header of a run")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"schema {version} is newer than this program's {SCHEMA_VERSION}; update it to read this run"
            )
        _check_header(record)
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{name: value for name, value in record.items() if name in known})
        except TypeError as error:
            raise StoreError(f"not the header of a run: {error}") from None


_HEADER_KINDS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("run_id", "started_at", "preset", "lab"), str, "a text"),
    (("command", "suites"), list, "a list of texts"),
    (("seed", "cases"), int, "a whole number"),
    (("fingerprint", "writer", "plan"), dict, "an object"),
)


def _check_header(record: dict[str, Any]) -> None:
    """Refuse a header whose fields are of another kind than its readers count on; what is left out is not judged."""
    for names, kind, need in _HEADER_KINDS:
        for name in names:
            value = record.get(name)
            texts = not isinstance(value, list) or all(isinstance(item, str) for item in value)
            if name in record and not (isinstance(value, kind) and not isinstance(value, bool) and texts):
                raise StoreError(f"{name} needs {need}, not {shown_value(value)}")
    fingerprint = record.get("fingerprint", {})
    # Where there was no working tree, or nothing is known of the machine, null stands.
    inner = {f"fingerprint.{name}": fingerprint.get(name) for name in ("identity", "volatile")}
    inner["fingerprint.volatile.git"] = (
        volatile.get("git") if isinstance(volatile := inner["fingerprint.volatile"], dict) else None
    )
    for name, value in inner.items():
        if value is not None and not isinstance(value, dict):
            raise StoreError(f"{name} needs an object, not {shown_value(value)}")


def utc_now() -> str:
    """The time now, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_run_id() -> str:
    """A run id that sorts by time, to the millisecond, and never collides between writers."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}-{secrets.token_hex(4)}"
