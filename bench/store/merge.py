"""Takes the runs of another store into this one, all of them or none."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError, UsageError
from bench.store.archive import new_archive_path, write_archive
from bench.store.catalog import consistently
from bench.store.compare import differing_parts
from bench.store.layout import new_file, runs_folder, unwritable

if TYPE_CHECKING:
    from pathlib import Path

    from bench.store.catalog import Catalog

STACKS_FOLDER = "stacks"


@dataclass
class MergeReport:
    """What a merge did.

    Attributes:
        taken: runs of which rows were taken.
        present: runs whose rows this store had already.
        unfinished: state of those taken runs that the other store still had open or orphaned; their
            rows so far were taken, and a later merge takes what has come since.
        torn: a line for each torn last line that was dropped.
    """

    taken: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    unfinished: dict[str, str] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def merge(store: Path, other: Path) -> MergeReport:
    """Take all rows of ``other`` that ``store`` lacks; doing it again takes nothing more.

    The rows arrive in one new file, so a merge that dies has no effect.

    Raises:
        UsageError: ``other`` is no store.
        StoreError: a run has different content here and there (it is named), or a file cannot be
            read or written; nothing was taken.
    """
    if not runs_folder(other).is_dir():
        raise UsageError(f"{other} is not a store: it has no folder runs/")
    return consistently(other, lambda theirs: consistently(store, lambda ours: _merge(ours, theirs)))


def _merge(ours: Catalog, theirs: Catalog) -> MergeReport:
    common = [copy for key, copy in ours.best.items() if key in theirs.best]
    differences = differing_parts(ours, common, theirs, [theirs.best[copy.key] for copy in common])
    if differences:
        runs = sorted({run_id for run_id, _ in differences})
        raise StoreError(
            f"run {', '.join(runs)} differs between {ours.store} and {theirs.store}"
            f" ({next(iter(differences.values()))}); nothing was merged"
        )
    taken = [
        copy for key, copy in theirs.best.items() if key not in ours.best or copy.part.rows > ours.best[key].part.rows
    ]
    runs = sorted({copy.key[0] for copy in taken})
    report = MergeReport(
        taken=runs,
        present=[run_id for run_id in theirs.runs if run_id not in runs],
        unfinished={run_id: state for run_id in runs if (state := theirs.state(run_id)) != "sealed"},
        torn=theirs.torn(runs),
    )
    if taken:
        try:
            runs_folder(ours.store).mkdir(parents=True, exist_ok=True)
            for run_id in runs:
                _copy_stacks(theirs.store, ours.store, run_id)
        except OSError as error:
            raise unwritable(ours.store, error, "nothing was merged") from error
        write_archive(theirs, taken, new_archive_path(ours.store))
    return report


def _copy_stacks(source: Path, target: Path, run_id: str) -> None:
    """Copy the stacks that reasons of the run's rows point to; they never change once written."""
    for path in sorted((source / STACKS_FOLDER).glob(f"{run_id}-*.txt")):
        copied = target / STACKS_FOLDER / path.name
        if not copied.exists():
            copied.parent.mkdir(parents=True, exist_ok=True)
            with new_file(copied) as temporary:
                shutil.copyfile(path, temporary)
