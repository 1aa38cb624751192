"""Tells whose output a file is by marks that only one tool leaves, so that one tool's is never read as another's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bench.importers.contents import Contents
from bench.importers.json_text import documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.importers.contents import Source

_TABLES = {
    "nccl-tests": re.compile(r"#[ \t]+size[ \t]+count\b|#[ \t]*(?:nccl|rccl)-tests version\b"),
    "osu": re.compile(r"#[ \t]*OSU[ \t]+[A-Za-z].*\bv\d"),
}


def refusal(tool: str, source: Source) -> Contents | None:
    """Contents with nothing but a fault if any of the file is another tool's; None if nothing tells so.

    A document or table with a mark of ``tool`` itself is its own, whatever else it looks like.
    """
    tables = {name: match.start() for name, mark in _TABLES.items() if (match := mark.search(source.text))}
    if tool in tables:
        return None
    found_documents = documents(source.text, Contents(tool))
    for document in found_documents:
        found = tools_of(document.data)
        if found and tool not in found:
            return _refused(tool, document.line, found[0])
    if found_documents or not tables:
        return None
    name, start = min(tables.items(), key=lambda item: item[1])
    return _refused(tool, source.text.count("\n", 0, start) + 1, name)


def tools_of(data: dict[str, Any]) -> list[str]:
    """The tools whose marks a JSON document bears; one of them if it is whole."""
    return [tool for tool, is_of in _MARKS.items() if is_of(data)]


def _refused(tool: str, line: int, other: str) -> Contents:
    contents = Contents(tool)
    contents.fault(line, f"this is {other}'s output, not {tool}'s; nothing of the file is read: bench import {other}")
    return contents


def _entries(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    listed = data.get(key)
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _any(data: dict[str, Any], key: str, *names: str) -> bool:
    return any(name in entry for entry in _entries(data, key) for name in names)


def _is_google(data: dict[str, Any]) -> bool:
    has_context = isinstance(data.get("context"), dict) and "benchmarks" in data
    return has_context or _any(data, "benchmarks", "real_time", "cpu_time", "time_unit", "run_type")


def _is_pytest(data: dict[str, Any]) -> bool:
    return ("machine_info" in data and "benchmarks" in data) or _any(data, "benchmarks", "stats", "fullname")


def _is_nvbench(data: dict[str, Any]) -> bool:
    return _any(data, "benchmarks", "states") or ("devices" in data and "benchmarks" in data)


def _is_asv(data: dict[str, Any]) -> bool:
    if isinstance(data.get("results"), dict):
        return any(key in data for key in ("commit_hash", "env_name", "result_columns"))
    return any(isinstance(entry, dict) and {"code", "type"} <= entry.keys() for entry in data.values())


def _is_hyperfine(data: dict[str, Any]) -> bool:
    return _any(data, "results", "command")


def _is_nccl(data: dict[str, Any]) -> bool:
    return "nccl_version" in data or "out_of_bounds" in data or _any(data, "results", "out_of_place", "in_place")


_MARKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "google-benchmark": _is_google,
    "pytest-benchmark": _is_pytest,
    "nvbench": _is_nvbench,
    "asv": _is_asv,
    "hyperfine": _is_hyperfine,
    "nccl-tests": _is_nccl,
}
