"""Keeps the tests that train on several ranks to what continuous integration has time for.

Of a test with many cases the first one runs there. ``FULL_TRAINING=1`` runs them all.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
TRAINING = tuple(HERE / folder for folder in ("systems", "pipeline", "training", "moe"))
REASON = "one case of each training test runs by default; FULL_TRAINING=1 runs all"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all but the first case of each test in the folders, and those that are slow."""
    if os.environ.get("FULL_TRAINING"):
        return
    for item in left_out(items):
        item.add_marker(pytest.mark.skip(reason=REASON))


def left_out(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Tests that only a full run has."""
    seen: set[tuple[Path, str]] = set()
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in TRAINING) or not trains(item.path):
            continue
        test = item.path, getattr(item, "originalname", item.name)
        if test in seen or item.get_closest_marker("slow"):
            yield item
        seen.add(test)


@cache
def trains(path: Path) -> bool:
    """Whether the tests of a file start groups of ranks, by itself or through a module that they share."""
    return re.search(r"run_world|_family\b|_worlds\b|resumed_runs", path.read_text(encoding="utf-8")) is not None
