"""Turns a part of a run that nobody writes any more from JSON lines into Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.errors import StoreError
from bench.store.archive import digest_of_part, write_archive
from bench.store.catalog import Catalog
from bench.store.columns import connect, digest
from bench.store.jsonl import JsonlPart, read_part
from bench.store.layout import remove
from bench.store.views import create_parts_view

if TYPE_CHECKING:
    from pathlib import Path


def seal_part(path: Path) -> Path:
    """Write a JSONL file's rows to the Parquet file of the same name, then remove it; the new path.

    The process may die anywhere: the lines go only after the Parquet file is there for good, and
    while both are there readers take one. A torn last line is dropped.

    Raises:
        StoreError: a line is broken, Parquet cannot be written, or is there with other rows; the
            lines are kept.
        FileNotFoundError: another process has sealed the part meanwhile, or it has no header yet.
    """
    target = path.with_suffix(".parquet")
    part = read_part(path)
    if part is None:
        raise FileNotFoundError(path)
    if target.exists():
        _require_same(part, target)
    else:
        catalog = Catalog.of_files(path.parent.parent, [path])
        write_archive(catalog, catalog.copies, target)
    remove(path)
    return target


def _require_same(lines: JsonlPart, sealed: Path) -> None:
    """Make sure that a crash after sealing left both files, before the lines are removed."""
    catalog = Catalog.of_files(sealed.parent.parent, [sealed])
    copies = [copy for copy in catalog.copies if copy.key == lines.key]
    with connect() as con:
        create_parts_view(con, catalog, copies)
        if not copies or digest_of_part(con, copies[0]) != digest(lines.lines()):
            raise StoreError(f"{sealed} holds other rows than {lines.path}; both are kept: move one of them away")
