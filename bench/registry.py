"""Finds suites and further verbs through entry points, so that other packages can add theirs."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from bench.errors import UsageError, unknown_name
from bench.suite import Suite

SUITE_GROUP = "bench.suites"
COMMAND_GROUP = "bench.commands"


def suite_names() -> list[str]:
    """Names of all installed suites, sorted."""
    return sorted({entry.name for entry in entry_points(group=SUITE_GROUP)})


def load_suite(name: str) -> Suite:
    """The suite of that name, or of a reference ``package.module:Class`` that is not installed.

    Raises:
        UsageError: no such suite, or it cannot be imported; the message says why.
    """
    if ":" in name:
        target = _import_reference(name)
    else:
        entries = {entry.name: entry for entry in entry_points(group=SUITE_GROUP)}
        if name not in entries:
            raise unknown_name("suite", name, sorted(entries))
        target = _load(entries[name])
    if not (isinstance(target, type) and issubclass(target, Suite)):
        raise UsageError(f"{name!r} is not a suite: it must be a subclass of bench.suite.Suite")
    try:
        return target()
    except Exception as error:
        raise UsageError(f"suite {name!r} cannot be made: {type(error).__name__}: {error}") from error


def command_entries() -> list[EntryPoint]:
    """Further verbs of installed packages: each entry point loads to a Typer app or a function."""
    return sorted(entry_points(group=COMMAND_GROUP), key=lambda entry: entry.name)


def _load(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"suite {entry.name!r} ({entry.value}) cannot be loaded: {error!r}") from error


def _import_reference(reference: str) -> object:
    module_name, _, class_name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise UsageError(f"{reference!r} is not a reference to a suite; write package.module:Class")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:
        raise UsageError(f"suite {reference!r} cannot be loaded: {type(error).__name__}: {error}") from error
