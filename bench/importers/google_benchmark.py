"""Reads the JSON of google/benchmark: repetitions become samples, aggregates serve where there are no repetitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.importers.contents import Contents, Source, as_int, as_number, quoted, utc
from bench.importers.definitions import (
    GOOGLE_ALLOCATIONS,
    GOOGLE_BYTES,
    GOOGLE_CPU_TIME,
    GOOGLE_ITEMS,
    GOOGLE_MEMORY,
    GOOGLE_REAL_TIME,
)
from bench.importers.json_text import documents
from bench.importers.other_values import add_other

if TYPE_CHECKING:
    from bench.definitions import Definition
    from bench.importers.json_text import Document
    from bench.store.row import Status

NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
AGGREGATES = ("mean", "median", "stddev", "cv", "min", "max", "BigO", "RMS")
RATES: dict[str, tuple[str, Definition, float]] = {
    "bytes_per_second": ("bandwidth", GOOGLE_BYTES, 1e-9),
    "items_per_second": ("items_rate", GOOGLE_ITEMS, 1.0),
    "allocs_per_iter": ("allocations", GOOGLE_ALLOCATIONS, 1.0),
    "max_bytes_used": ("max_memory", GOOGLE_MEMORY, 1.0),
    "total_allocated_bytes": ("allocated_memory", GOOGLE_MEMORY, 1.0),
    "net_heap_growth": ("heap_growth", GOOGLE_MEMORY, 1.0),
}
KNOWN = {
    "name",
    "family_index",
    "per_family_instance_index",
    "run_name",
    "run_type",
    "repetitions",
    "repetition_index",
    "threads",
    "iterations",
    "real_time",
    "cpu_time",
    "time_unit",
    "label",
    "error_occurred",
    "error_message",
    "skipped",
    "skip_message",
    "aggregate_name",
    "aggregate_unit",
    "cpu_coefficient",
    "real_coefficient",
    "big_o",
    "rms",
}
IDENTITY = ("num_cpus", "caches", "library_build_type", "library_version")
VOLATILE = ("host_name", "executable", "mhz_per_cpu", "cpu_scaling_enabled", "aslr_enabled", "load_avg")


def read(source: Source) -> Contents:
    """All benchmarks of the file's documents, each of which is a start of the program."""
    contents = Contents("google-benchmark")
    for launch, document in enumerate(documents(source.text, contents)):
        entries = document.data.get("benchmarks")
        if not isinstance(entries, list):
            contents.fault(
                document.line, "no list 'benchmarks'; --benchmark_out=FILE --benchmark_format=json makes one"
            )
            continue
        _read_context(contents, document)
        if not entries:
            contents.fault(document.line, "the list 'benchmarks' is empty: nothing was measured")
        lines = document.lines_of("benchmarks")
        repeated = {_run_name(entry) for entry in entries if isinstance(entry, dict) and not _aggregate(entry)}
        for number, entry in enumerate(entries):
            line = lines[number] if number < len(lines) else document.line
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                contents.fault(line, f"benchmarks[{number}] has no name: {quoted(entry)}")
            else:
                _read_entry(contents, entry, line, launch, repeated)
    return contents


def _read_context(contents: Contents, document: Document) -> None:
    context = document.data["context"] if isinstance(document.data.get("context"), dict) else {}
    identity = {key: context[key] for key in IDENTITY if key in context}
    contents.identity = contents.identity or identity
    contents.tells_machine = contents.tells_machine or "num_cpus" in context
    contents.volatile |= {key: context[key] for key in VOLATILE if key in context}
    own = {key: value for key, value in context.items() if key not in (*IDENTITY, *VOLATILE, "date")}
    if own:
        contents.volatile["context"] = own
    contents.started_at = contents.started_at or utc(context.get("date"))
    if context.get("library_build_type") == "debug":
        contents.note("the library of google/benchmark was a debug build: its own overhead is in the numbers")


def _aggregate(entry: dict[str, Any]) -> str:
    """The aggregate that an entry is, or nothing. Before 1.5 only the name's end told it."""
    if entry.get("aggregate_name"):
        return str(entry["aggregate_name"])
    if "run_type" in entry:
        return "mean" if entry["run_type"] == "aggregate" else ""
    return next((end for end in AGGREGATES if str(entry.get("name")).endswith(f"_{end}")), "")


def _run_name(entry: dict[str, Any]) -> str:
    aggregate = _aggregate(entry)
    name = str(entry.get("run_name") or entry.get("name"))
    return name.removesuffix(f"_{aggregate}") if aggregate and "run_name" not in entry else name


def _read_entry(contents: Contents, entry: dict[str, Any], line: int, launch: int, repeated: set[str]) -> None:
    aggregate, name = _aggregate(entry), _run_name(entry)
    if aggregate and (name in repeated or aggregate != "median"):
        if aggregate in ("BigO", "RMS"):
            contents.note("fits of complexity (BigO, RMS) are left out: they are no measurements")
        elif name in repeated:
            contents.note("aggregates are left out where the file has the repetitions that they are made of")
        elif aggregate == "mean" and not entry.get("aggregate_name"):
            _add(contents, entry, name, line, launch, 1)
        else:
            contents.note("without repetitions the median stands for them; other aggregates are left out")
        return
    summed = (as_int(entry.get("iterations")) or 1) if aggregate else 0
    _add(contents, entry, name, line, launch, summed)


def _add(contents: Contents, entry: dict[str, Any], name: str, line: int, launch: int, summed: int) -> None:
    """The rows of an entry; ``summed`` repetitions are in its numbers, or none: then it is one itself."""
    params: dict[str, Any] = {"benchmark": name}
    if (threads := as_int(entry.get("threads"))) and threads > 1:
        params["threads"] = threads
    if entry.get("label"):
        contents.note("labels are left out: they may change from run to run, and name no case")
    status, reason = _outcome(entry)
    unit = str(entry.get("time_unit", "ns"))
    if unit not in NANOSECONDS:
        contents.fault(line, f"{quoted(name)} has the time unit {quoted(unit)}; known: {', '.join(NANOSECONDS)}")
        return
    row: dict[str, Any] = {"status": status, "reason": reason, "launch": launch}
    if summed:
        row |= {"samples": (), "n": summed}
    if status == "ok" and not {"real_time", "cpu_time"} & entry.keys():
        contents.fault(line, f"{quoted(name)} has no time")
    for key, definition in (("real_time", GOOGLE_REAL_TIME), ("cpu_time", GOOGLE_CPU_TIME)):
        if key in entry or status != "ok":
            contents.add(key, definition, params, _scaled(entry.get(key), NANOSECONDS[unit]), **row)
    if status != "ok":
        return
    for key, value in entry.items():
        if key in RATES:
            metric, definition, factor = RATES[key]
            contents.add(metric, definition, params, _scaled(value, factor), **row)
        elif key not in KNOWN and isinstance(value, (int, float)) and not isinstance(value, bool):
            add_other(contents, key, params, value, **row)
        elif key not in KNOWN:
            contents.fault(line, f"{quoted(name)} has {quoted(key)}: {quoted(value)}, which is no number")


def _outcome(entry: dict[str, Any]) -> tuple[Status, str]:
    if entry.get("error_occurred"):
        return "failed", str(entry.get("error_message") or "the benchmark reports an error without a message")
    if entry.get("skipped"):
        return "skipped", str(entry.get("skip_message") or "the benchmark skipped itself without a message")
    return "ok", ""


def _scaled(value: object, factor: float) -> object:
    """A number times a factor; anything else as it is, to be quoted."""
    number = as_number(value)
    return value if number is None else number * factor
