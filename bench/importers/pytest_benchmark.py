"""Reads pytest-benchmark's JSON, of ``--benchmark-json`` or of its storage, with and without the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.importers.contents import Contents, Source, as_int, as_number, as_samples, quoted, utc
from bench.importers.definitions import PYTEST_DURATION
from bench.importers.json_text import documents
from bench.importers.other_values import own_params

if TYPE_CHECKING:
    from bench.importers.json_text import Document

IDENTITY = ("machine", "processor", "system", "release", "python_implementation", "python_version", "python_compiler")
CPU_IDENTITY = {"brand_raw": "model", "brand": "model", "count": "count", "arch": "arch", "l3_cache_size": "l3_cache"}
"""Of the processor, what stays the same from run to run: the clock rate does not."""


def read(source: Source) -> Contents:
    """All benchmarks of the file."""
    contents = Contents("pytest-benchmark")
    for launch, document in enumerate(documents(source.text, contents)):
        benchmarks = document.data.get("benchmarks")
        if not isinstance(benchmarks, list):
            contents.fault(document.line, "no list 'benchmarks'; --benchmark-json=FILE makes one")
            continue
        _read_run(contents, document)
        if not benchmarks:
            contents.fault(document.line, "the list 'benchmarks' is empty: nothing was measured")
        lines = document.lines_of("benchmarks")
        for number, entry in enumerate(benchmarks):
            line = lines[number] if number < len(lines) else document.line
            if not isinstance(entry, dict) or not (entry.get("fullname") or entry.get("name")):
                contents.fault(line, f"benchmarks[{number}] has no name: {quoted(entry)}")
            else:
                _read_entry(contents, entry, line, launch)
    return contents


def _read_run(contents: Contents, document: Document) -> None:
    data = document.data
    machine = data["machine_info"] if isinstance(data.get("machine_info"), dict) else {}
    cpu = machine["cpu"] if isinstance(machine.get("cpu"), dict) else {}
    identity: dict[str, Any] = {key: machine[key] for key in IDENTITY if machine.get(key)}
    if facts := {name: cpu[key] for key, name in CPU_IDENTITY.items() if cpu.get(key)}:
        identity["cpu"] = facts
    if data.get("version"):
        identity["harness"] = f"pytest-benchmark {data['version']}"
    contents.identity = contents.identity or identity
    contents.tells_machine = contents.tells_machine or bool(machine)
    if machine.get("node"):
        contents.volatile["host"] = str(machine["node"])
    if clock := cpu.get("hz_actual_friendly"):
        contents.volatile["clock"] = clock
    commit = data["commit_info"] if isinstance(data.get("commit_info"), dict) else {}
    if commit.get("id") and commit["id"] != "unversioned":
        contents.commit, contents.dirty = str(commit["id"]), bool(commit.get("dirty"))
    contents.started_at = contents.started_at or utc(data.get("datetime"))


def _read_entry(contents: Contents, entry: dict[str, Any], line: int, launch: int) -> None:
    name = str(entry.get("fullname") or entry["name"])
    given = entry["params"] if isinstance(entry.get("params"), dict) else {}
    params = own_params(given, {"benchmark": name})
    stats = entry.get("stats")
    if not isinstance(stats, dict) or entry.get("error"):
        reason = f"no statistics in the file: {quoted(entry.get('error') or stats)}"
        contents.add("duration", PYTEST_DURATION, params, None, status="failed", reason=reason, launch=launch)
        return
    data = stats["data"] if isinstance(stats.get("data"), list) else []
    samples, value, fault = as_samples(data, stats.get("median"))
    if bad := sum(as_number(each) is None for each in data):
        contents.fault(line, f"{bad} of {len(data)} samples of {quoted(name)} are no numbers")
    failed: dict[str, Any] = {"status": "failed", "reason": fault} if fault else {}
    if not data:
        contents.note("the file has summaries only; --benchmark-save-data keeps the samples, which verdicts need")
    if entry.get("extra_info"):
        contents.note("extra_info is left out: nothing says what its values are")
    rounds = as_int(stats.get("rounds"))
    contents.add("duration", PYTEST_DURATION, params, value, samples=samples, n=rounds, launch=launch, **failed)
