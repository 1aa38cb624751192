"""A check: what was looked at, what was found, and the command that would add or repair it."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from bench.errors import EXIT_NOT_MEASURED, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Iterable

Status = Literal["ok", "warn", "missing", "n/a"]

FEDORA_PACKAGES = {"iproute2": "iproute", "openmpi-bin": "openmpi", "chromium-driver": "chromedriver"}
"""Names on Fedora and its kin, where they differ from Debian's."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: what was looked at.
        status: ``ok``; ``warn``: works, but measurements may suffer; ``missing``: something cannot be run
            without it; ``n/a``: means nothing on this machine.
        found: what is there, or why not, in a line.
        fix: the command that would add or repair it, or what to do where no command can; empty if nothing.
        required: nothing can be measured while it is missing.
    """

    name: str
    status: Status
    found: str
    fix: str = ""
    required: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def exit_code(checks: Iterable[Check]) -> int:
    """0, or that of "not measured" if something required is missing."""
    return EXIT_NOT_MEASURED if any(check.required and check.status == "missing" for check in checks) else EXIT_OK


def install_command(*debian_packages: str) -> str:
    """How this system's package manager adds packages, given by Debian's names."""
    if shutil.which("apt-get"):
        return f"sudo apt-get install {' '.join(debian_packages)}"
    names = " ".join(FEDORA_PACKAGES.get(package, package) for package in debian_packages)
    manager = next((name for name in ("dnf", "yum", "zypper") if shutil.which(name)), None)
    return f"sudo {manager} install {names}" if manager else f"install {names} with this system's package manager"
