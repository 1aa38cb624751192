"""Reads asv's result files, versions 1 and 2: null is a failure, NaN a skipped case, parameters a product."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.bounded_file import read_bounded
from bench.importers.contents import (
    Contents,
    Source,
    as_int,
    as_number,
    as_samples,
    quoted,
    utc_of_milliseconds,
)
from bench.importers.definitions import ASV_MEMORY, ASV_TIME, OTHER_VALUE
from bench.importers.json_text import documents
from bench.importers.other_values import own_params

if TYPE_CHECKING:
    from bench.definitions import Definition
    from bench.importers.json_text import Document

KINDS: dict[str, tuple[str, Definition]] = {
    "timeraw": ("duration", ASV_TIME),
    "time": ("duration", ASV_TIME),
    "peakmem": ("peak_memory", ASV_MEMORY),
    "peakmemory": ("peak_memory", ASV_MEMORY),
    "mem": ("memory", ASV_MEMORY),
    "memory": ("memory", ASV_MEMORY),
    "track": ("value", OTHER_VALUE),
}
"""By the type in ``benchmarks.json``, or the beginning of the benchmark's own name."""
BENCHMARKS_FILE = "benchmarks.json"
MACHINE_FACTS = ("arch", "cpu", "num_cpu", "os", "ram")
OLD_COLUMNS = ("result", "params", "samples", "stats")
VERSION_BITS = 52


def read(source: Source) -> Contents:
    """All results of one file: a machine, an environment and a commit."""
    contents = Contents("asv")
    for document in documents(source.text, contents):
        data = document.data
        if isinstance(data.get("results"), dict):
            _Results(source, contents, document).read()
        elif "machine" in data and "commit_hash" not in data:
            contents.note("this file describes a machine and has no results")
        elif any(isinstance(entry, dict) and "code" in entry for entry in data.values()):
            contents.note("this file describes benchmarks; it is read beside the results that it belongs to")
        else:
            contents.fault(document.line, "no object 'results'; asv keeps such files in results/MACHINE/")
    return contents


class _Results:
    """A file of results, with what lies beside it to say of their units and parameters."""

    def __init__(self, source: Source, contents: Contents, document: Document) -> None:
        self._contents, self._document, self._data = contents, document, document.data
        self._described = _descriptions(source, contents)
        self._columns = self._data["result_columns"] if isinstance(self._data.get("result_columns"), list) else None

    def read(self) -> None:
        """Add the rows of every benchmark, and what the file tells of machine, environment and commit."""
        self._read_run()
        lines = self._document.lines_of("results")
        results = self._data["results"]
        if not results:
            self._contents.fault(self._document.line, "the object 'results' is empty: nothing was measured")
        for number, (name, entry) in enumerate(results.items()):
            line = lines[number] if number < len(lines) else self._document.line
            columns = self._columns_of(name, entry)
            if columns is None:
                self._contents.fault(line, f"the result of {quoted(name)} is {quoted(entry)}")
            else:
                self._read_benchmark(name, columns, line)

    def _read_run(self) -> None:
        data, contents = self._data, self._contents
        machine = data["params"] if isinstance(data.get("params"), dict) else {}
        facts = {key: machine[key] for key in MACHINE_FACTS if machine.get(key)}
        # asv tells machines apart by the name that their owners give them.
        named = {"machine": str(machine["machine"])} if machine.get("machine") else {}
        software = {key: data[key] for key in ("python", "requirements", "env_vars") if data.get(key)}
        contents.identity = {**named, **facts, **software}
        contents.tells_machine = bool(named or facts)
        contents.commit = str(data.get("commit_hash") or "")
        # A file is dated by its commit, as in asv's own graphs: commits are often measured in any order.
        contents.started_at = utc_of_milliseconds(data.get("date"))
        if data.get("env_name"):
            contents.volatile["environment"] = str(data["env_name"])

    def _columns_of(self, name: str, entry: object) -> dict[str, Any] | None:
        """The columns of a benchmark by name, of either version; None if they cannot be told."""
        if self._columns is not None:
            return dict(zip(map(str, self._columns), entry, strict=False)) if isinstance(entry, list) else None
        version = self._data.get("benchmark_version")
        extra = {"version": version.get(name)} if isinstance(version, dict) else {}
        started = self._data.get("started_at")
        extra["started_at"] = started.get(name) if isinstance(started, dict) else None
        if isinstance(entry, dict):
            return {**{key: entry.get(key) for key in OLD_COLUMNS}, **extra}
        return {"result": entry, **extra} if entry is None or isinstance(entry, (int, float)) else None

    def _read_benchmark(self, name: str, columns: dict[str, Any], line: int) -> None:
        described = self._described.get(name, {})
        kind = _kind(name, described)
        if kind is None:
            self._contents.fault(
                line, f"nothing says what {quoted(name)} measures: no {BENCHMARKS_FILE} beside, no known name"
            )
            return
        values = columns.get("result")
        values = values if isinstance(values, list) else [values]
        axes = columns["params"] if isinstance(columns.get("params"), list) else []
        points = list(itertools.product(*(axis if isinstance(axis, list) else [axis] for axis in axes)))
        if values == [None] and len(points) > 1:
            values = [None] * len(points)  # The benchmark failed before it came to its parameters.
        if len(values) != len(points):
            self._contents.fault(line, f"{quoted(name)} has {len(values)} results for {len(points)} cases")
            return
        names = described["param_names"] if isinstance(described.get("param_names"), list) else []
        labels = [str(names[place]) if place < len(names) else f"param{place + 1}" for place in range(len(axes))]
        for place, (point, value) in enumerate(zip(points, values, strict=True)):
            case = own_params(
                {label: _literal(text) for label, text in zip(labels, point, strict=True)}, {"benchmark": name}
            )
            self._add(kind, case, value, columns, place, str(described.get("unit") or ""))

    def _add(
        self,
        kind: tuple[str, Definition],
        case: dict[str, Any],
        value: object,
        columns: dict[str, Any],
        place: int,
        unit: str,
    ) -> None:
        metric, definition = kind
        if definition is OTHER_VALUE and unit and unit != "unit":
            case["unit"] = unit
        row: dict[str, Any] = {
            "method_version": method_version(columns.get("version")),
            "started_at": utc_of_milliseconds(columns.get("started_at")),
        }
        if value is None:
            row |= {"status": "failed", "reason": "the benchmark failed (null in the file)"}
        elif isinstance(value, float) and math.isnan(value):
            row |= {"status": "skipped", "reason": "the benchmark skipped this case (NaN in the file)"}
        samples = _at(columns.get("samples"), place)
        numbers = [as_number(sample) for sample in samples] if isinstance(samples, list) else []
        kept = [number for number in numbers if number is not None]
        if kept and len(kept) < len(numbers) and "status" not in row:
            _, _, reason = as_samples(samples if isinstance(samples, list) else [], value)
            row |= {"status": "failed", "reason": reason}
        elif kept and "status" not in row:
            value, row["samples"] = median(kept), kept
        elif repeats := as_int(_at(columns.get("stats_repeat"), place)):
            row |= {"samples": (), "n": repeats}
        self._contents.add(metric, definition, case, value, **row)


def method_version(version: object) -> int:
    """A benchmark's version as a row's: asv hashes its code, and compares no two versions; nor do we.

    A whole number stays itself, and the first 52 bits of a hash stand for anything else. 1 without any.
    """
    if version is None or version == "":
        return 1
    text = str(version)
    if re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    return int(hashlib.sha256(text.encode(errors="replace")).hexdigest()[: VERSION_BITS // 4], 16)


def _kind(name: str, described: dict[str, Any]) -> tuple[str, Definition] | None:
    if isinstance(described.get("type"), str) and described["type"] in KINDS:
        return KINDS[described["type"]]
    own = name.rpartition(".")[2].lower()
    return next((kind for start, kind in KINDS.items() if own.startswith((f"{start}_", start))), None)


def _descriptions(source: Source, contents: Contents) -> dict[str, dict[str, Any]]:
    """What ``benchmarks.json``, in the folder above, says of each benchmark; empty if it is not there."""
    if source.path is None:
        return {}
    path = source.path.parent.parent / BENCHMARKS_FILE
    try:
        data = json.loads(read_bounded(path).decode(errors="replace"))
    except FileNotFoundError:
        contents.note(f"no {BENCHMARKS_FILE} in the folder above: names tell what is measured, parameters are numbered")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        contents.fault(1, f"{BENCHMARKS_FILE} in the folder above cannot be read: {quoted(str(error))}")
        return {}
    return {name: entry for name, entry in data.items() if isinstance(entry, dict)} if isinstance(data, dict) else {}


def _literal(text: object) -> object:
    """A parameter: asv keeps Python's repr of it, of which numbers, booleans and plain strings are taken back."""
    if not isinstance(text, str):
        return text
    if text in ("True", "False"):
        return text == "True"
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" and "\\" not in text:
        return text[1:-1]
    whole = as_int(text) if text.lstrip("-").isdigit() else None
    return whole if whole is not None else text


def _at(values: object, place: int) -> object:
    return values[place] if isinstance(values, list) and place < len(values) else None
