"""Tidies a store: seals what was left open, removes leftovers, and folds small files into one."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.errors import UsageError
from bench.store.archive import new_archive_path, write_archive
from bench.store.catalog import consistently
from bench.store.layout import LEFTOVER_AGE_S, left_over, remove, temporary_files
from bench.store.owner import is_alive
from bench.store.seal import seal_part

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from bench.store.catalog import Catalog

SMALL_FILE_BYTES = 16 << 20
"""Files below this are folded together; a larger one costs a reader nothing worth saving."""


@dataclass
class CompactReport:
    """What was done: paths within ``runs/``, and the runs that were left open because they are, or may be, written."""

    sealed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    archive: str | None = None
    left_open: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def compact(store: Path, abandoned: Collection[str] = ()) -> CompactReport:
    """Tidy a store while others read and write it.

    At every moment each row is there, and readers see it once: a file is removed only after what
    replaces it is on disk for good. Files of living writers are not touched.

    Args:
        store: its path.
        abandoned: ids of runs whose writer was on another machine and is gone for sure.

    Raises:
        UsageError: an abandoned run that is not there, or whose writer lives on this machine.
        StoreError: a file is damaged or cannot be written.
    """
    report = CompactReport()
    for path in temporary_files(store):
        if left_over(path):
            _remove(path, report)
    consistently(store, lambda catalog: _seal(catalog, abandoned, report))
    consistently(store, lambda catalog: _remove_outranked(catalog, report))
    consistently(store, lambda catalog: _fold(catalog, report))
    return report


def _seal(catalog: Catalog, abandoned: Collection[str], report: CompactReport) -> None:
    """Seal parts without a writer; where a crash left the sealed file beside the lines, the lines go."""
    _require_dead(catalog, abandoned)
    left_open = set()
    for copy in catalog.copies:
        if copy.is_sealed:
            continue
        alive = is_alive(copy.part.record.writer)
        run_id = copy.key[0]
        if alive is False or run_id in abandoned or (alive is None and copy.path.with_suffix(".parquet").exists()):
            with suppress(FileNotFoundError):  # another process was faster
                report.sealed.append(seal_part(copy.path).name)
        else:
            left_open.add(run_id)
    for path in catalog.headless:
        # A header follows the file's creation at once, so this one was cut off.
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > LEFTOVER_AGE_S:
                _remove(path, report)
    report.left_open = sorted(left_open)


def _require_dead(catalog: Catalog, abandoned: Collection[str]) -> None:
    catalog.require(abandoned)
    for run_id in abandoned:
        if any(
            copy.key[0] == run_id and is_alive(copy.part.record.writer) for copy in catalog.copies if not copy.is_sealed
        ):
            raise UsageError(f"run {run_id} is not abandoned: its writer lives on this machine")


def _remove_outranked(catalog: Catalog, report: CompactReport) -> None:
    """Remove sealed files of which every part has a copy in a sealed file that ranks higher."""
    for path, copies in catalog.by_file.items():
        best = [catalog.best[copy.key] for copy in copies]
        if copies[0].is_sealed and all(copy.is_sealed and copy.path != path for copy in best):
            _remove(path, report)


def _fold(catalog: Catalog, report: CompactReport) -> None:
    """Write the parts of all small sealed files into one new file, then remove them."""
    small = [
        path
        for path, copies in catalog.by_file.items()
        if copies[0].is_sealed and path.stat().st_size < SMALL_FILE_BYTES
    ]
    if len(small) < 2:
        return
    folded = [copy for path in small for copy in catalog.by_file[path]]
    counting = sorted((copy for copy in folded if catalog.best[copy.key] == copy), key=lambda copy: copy.key)
    target = new_archive_path(catalog.store)
    write_archive(catalog, counting, target, generation=1 + max(copy.generation for copy in folded))
    report.archive = target.name
    for path in small:
        remove(path)
        report.folded.append(path.name)


def _remove(path: Path, report: CompactReport) -> None:
    remove(path)
    report.removed.append(path.name)
