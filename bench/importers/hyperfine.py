"""Reads the JSON of ``hyperfine --export-json``, old and new."""

from __future__ import annotations

from typing import Any

from bench.importers.contents import Contents, Source, as_list, as_number, as_samples, quoted
from bench.importers.definitions import HYPERFINE_CPU, HYPERFINE_DURATION, HYPERFINE_MEAN, HYPERFINE_MEMORY
from bench.importers.json_text import documents
from bench.importers.other_values import own_params


def read(source: Source) -> Contents:
    """All commands of the file."""
    contents = Contents("hyperfine")
    for launch, document in enumerate(documents(source.text, contents)):
        results = document.data.get("results")
        if not isinstance(results, list):
            contents.fault(document.line, "no list 'results'; hyperfine writes one with --export-json FILE")
            continue
        if not results:
            contents.fault(document.line, "the list 'results' is empty: nothing was measured")
        lines = document.lines_of("results")
        for number, entry in enumerate(results):
            line = lines[number] if number < len(lines) else document.line
            if isinstance(entry, dict) and isinstance(entry.get("command"), str):
                _read_command(contents, entry, line, launch)
            else:
                contents.fault(line, f"results[{number}] has no command: {quoted(entry)}")
    return contents


def _read_command(contents: Contents, entry: dict[str, Any], line: int, launch: int) -> None:
    given = entry["parameters"] if isinstance(entry.get("parameters"), dict) else {}
    if entry.get("parameter") is not None:  # until 1.11, the only one's value
        given = {"parameter": entry["parameter"], **given}
    params = own_params(given, {"command": entry["command"]})
    row: dict[str, Any] = {"launch": launch}
    if reason := _failure(entry.get("exit_codes")):
        row |= {"status": "failed", "reason": reason}
    has_median = entry.get("median") is not None
    listed = as_list(entry.get("times"))
    _tell_bad(contents, "times", listed, line)
    times, value, fault = as_samples(listed, entry.get("median" if has_median else "mean"))
    definition = HYPERFINE_DURATION if times or has_median else HYPERFINE_MEAN
    contents.add("duration", definition, params, value, samples=times, **{**row, **_failed(fault)})
    for key, metric in (("user", "user_time"), ("system", "system_time")):
        if entry.get(key) is not None:
            contents.add(metric, HYPERFINE_CPU, params, entry[key], samples=(), n=len(times), **row)
    listed = as_list(entry.get("memory_usage_byte"))
    _tell_bad(contents, "memory_usage_byte", listed, line)
    memory, value, fault = as_samples(listed, None)
    if any(memory) or fault:  # zeros where the system does not tell
        contents.add("peak_memory", HYPERFINE_MEMORY, params, value, samples=memory, **{**row, **_failed(fault)})


def _failure(codes: object) -> str:
    """Why the command failed, if it did: hyperfine -i goes on after exit codes that are not 0; null is a signal."""
    if not isinstance(codes, list):
        return ""
    bad = [code for code in codes if code != 0]
    if not bad:
        return ""
    kinds = ", ".join(dict.fromkeys("a signal" if code is None else quoted(code) for code in bad))
    return f"exit code {kinds} in {len(bad)} of {len(codes)} runs"


def _failed(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason} if reason else {}


def _tell_bad(contents: Contents, key: str, values: list[Any], line: int) -> None:
    """Report how many of a command's numbers are none."""
    if bad := sum(as_number(value) is None for value in values):
        contents.fault(line, f"{bad} of {len(values)} {key} are no numbers")
