"""Importers: one file a tool, each of which turns that tool's output into rows; found by the tool's name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bench.errors import unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.importers.contents import Contents, Source

IMPORTERS = {
    "nccl-tests": "bench.importers.nccl_tests",
    "osu": "bench.importers.osu",
    "google-benchmark": "bench.importers.google_benchmark",
    "nvbench": "bench.importers.nvbench",
    "pytest-benchmark": "bench.importers.pytest_benchmark",
    "asv": "bench.importers.asv",
    "hyperfine": "bench.importers.hyperfine",
}
"""By tool, the module whose function ``read`` takes a ``Source`` and gives its ``Contents``."""


def importer(tool: str) -> Callable[[Source], Contents]:
    """The function that reads the tool's files.

    Raises:
        UsageError: no such tool; the message lists those that there are.
    """
    if tool not in IMPORTERS:
        raise unknown_name("tool", tool, list(IMPORTERS))
    read: Callable[[Source], Contents] = importlib.import_module(IMPORTERS[tool]).read
    return read
