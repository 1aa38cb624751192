"""Files of a store whose header cannot be read: of such a run nothing is known but its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.store.catalog import consistently
from bench.store.layout import part_of

if TYPE_CHECKING:
    from pathlib import Path

    from bench.store.catalog import Catalog


def headless_files(store: Path) -> list[tuple[str, Path]]:
    """The runs without any part that can be read, in order, each with a file of it.

    Raises:
        StoreError: a file is damaged.
    """

    def find(catalog: Catalog) -> list[tuple[str, Path]]:
        named = [(name[0], path) for path in catalog.headless if (name := part_of(path)) is not None]
        return sorted((run_id, path) for run_id, path in named if run_id not in catalog.runs)

    return consistently(store, find)
