"""Reads files and texts of other tools as `bench import` does, without a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.importers import importer
from bench.importers.contents import Source
from bench.importers.pooling import pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.importers.contents import Contents
    from bench.store.row import Row

DATA = Path(__file__).resolve().parents[2] / "data" / "imports"


@dataclass
class Found:
    """What an importer made of a file."""

    contents: Contents
    rows: list[Row]

    @property
    def faults(self) -> list[tuple[int, str]]:
        return [(fault.line, fault.what) for fault in self.contents.faults]

    def of(self, metric: str, **params: object) -> Row:
        """The one row of a metric with these parameters."""
        rows = [row for row in self.rows if row.metric == metric and params.items() <= row.params.items()]
        assert len(rows) == 1, f"{len(rows)} rows: {[row.case for row in rows]}"
        return rows[0]


@pytest.fixture
def read() -> Callable[..., Found]:
    """Read a file of the test data, or a text, by a tool's importer; options are added parameters."""

    def act(tool: str, file: str = "", text: str | None = None, **options: str) -> Found:
        path = DATA / tool / file if text is None else None
        content = path.read_text() if path else text or ""
        contents = importer(tool)(Source(file or "-", content, path, options))
        rows = pool(contents)
        for row in rows:
            row.run_id = "run"
            row.to_json()  # Every row can be stored.
        return Found(contents, rows)

    return act
