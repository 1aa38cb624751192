"""Whether copies of the same parts of runs hold the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.store.columns import COLUMNS, PART_COLUMN, connect, quoted
from bench.store.views import create_parts_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.store.catalog import Catalog, Copy, Key


def differing_parts(
    ours: Catalog, our_copies: Sequence[Copy], theirs: Catalog, their_copies: Sequence[Copy]
) -> dict[Key, str]:
    """The parts whose copies contradict each other, and how. The shorter of two may lack the last rows.

    Args:
        ours, theirs: catalogs of the stores that hold the copies.
        our_copies, their_copies: at most one copy of a part on each side.
    """
    differences: dict[Key, str] = {}
    their_parts = {copy.key: copy.part for copy in their_copies}
    for copy in our_copies:
        other = their_parts.get(copy.key)
        if other is None:
            continue
        if copy.part.record != other.record:
            differences[copy.key] = "their records differ"
        elif copy.part.rows and other.rows and copy.part.first_row != other.first_row:
            differences[copy.key] = f"one begins at row {copy.part.first_row}, the other at row {other.first_row}"
    one, two = (f"({', '.join(f'{side}.{quoted(name)}' for name in COLUMNS)})" for side in ("ours", "theirs"))
    with connect() as con:
        create_parts_view(con, ours, our_copies, "ours")
        create_parts_view(con, theirs, their_copies, "theirs")
        found = con.execute(
            f"SELECT ours.run_id, ours.{PART_COLUMN}, min(ours.row_id) FROM ours"
            f" JOIN theirs USING (run_id, {PART_COLUMN}, row_id) WHERE {one} IS DISTINCT FROM {two} GROUP BY ALL"
        ).fetchall()
    for run_id, part, row_id in found:
        differences.setdefault((run_id, part), f"they differ first in row {row_id}")
    return differences
