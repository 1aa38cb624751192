"""Checks that other installed packages add, each about itself, through the entry points ``bench.checks``.

An entry point loads to a function without arguments that gives mappings with the fields of a check:
``name``, ``status`` and ``found``, and ``fix`` where something can be done. It must be quick, and must
not import what may be broken.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, get_args

from bench.doctor.check import Check, Status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

CHECK_GROUP = "bench.checks"


def installed_checks() -> list[Check]:
    """The checks of all installed packages, by the names of their entry points; one that fails is shown as such."""
    found = []
    for entry in sorted(entry_points(group=CHECK_GROUP), key=lambda entry: entry.name):
        try:
            found += [_check(record) for record in entry.load()()]
        except Exception as error:
            found.append(_failed(entry, error))
    return found


def _check(record: Mapping[str, str]) -> Check:
    check = Check(**{"fix": "", **record})  # type: ignore[arg-type]  # what is wrong is shown as a failure
    if check.status not in get_args(Status):
        raise ValueError(f"check {check.name!r} has the unknown status {check.status!r}")
    # Nothing that another package lacks keeps the harness from measuring.
    return Check(check.name, check.status, check.found, check.fix)


def _failed(entry: EntryPoint, error: Exception) -> Check:
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    package = entry.dist.name if entry.dist else entry.value.partition(".")[0]
    return Check(f"checks of {entry.name}", "warn", f"{entry.value} failed: {reason}", f"install {package} again")
