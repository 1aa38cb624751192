"""The folder of a job, in the store beside the runs: its script, its log, and which job it became."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from bench.errors import StoreError, UsageError
from bench.store.layout import unwritable
from bench.store.row import new_run_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT, LOG, OUTPUT, EXIT_CODE, RECORD = "job.sbatch", "log.txt", "output.txt", "exit-code", "job.json"
JOBS = "jobs"
LATEST = "latest"


@dataclass(frozen=True)
class Job:
    """A submitted job.

    Attributes:
        number: Slurm's id of it.
        cluster: that Slurm named, empty for the only one.
        verb: run or characterize.
        folder: where its script is.
        store: where its rows are.
    """

    number: str
    cluster: str
    verb: str
    folder: Path
    store: Path

    @property
    def script(self) -> Path:
        return self.folder / SCRIPT

    @property
    def log(self) -> Path:
        """Standard error of the script and of all ranks."""
        return self.folder / LOG

    @property
    def output(self) -> Path:
        """Their standard output."""
        return self.folder / OUTPUT

    def noted_exit_code(self) -> int | None:
        """The exit code of rank 0 in the latest group of ranks, or None if it ended without one."""
        try:
            return int((self.folder / EXIT_CODE).read_text())
        except (OSError, ValueError):
            return None

    def save(self) -> None:
        """Note which job the folder's script became.

        Raises:
            StoreError: the folder cannot be written.
        """
        record = {name: str(value) for name, value in asdict(self).items() if name not in ("folder", "store")}
        path = self.folder / RECORD
        try:
            path.write_text(json.dumps(record) + "\n")
        except OSError as error:
            raise unwritable(path, error) from error


def new_folder(store: Path) -> Path:
    """The path of a further job's folder, not made yet; such names sort by time."""
    return store / JOBS / new_run_id()


def write_script(folder: Path, text: str) -> Path:
    """Make the folder with the script in it.

    Raises:
        StoreError: the store cannot be written.
    """
    try:
        folder.mkdir(parents=True)
        path = folder / SCRIPT
        path.write_text(text)
        path.chmod(0o755)
    except OSError as error:
        raise unwritable(folder / SCRIPT, error) from error
    return path


def find_job(store: Path, number: str) -> Job:
    """The job of that number that was submitted last, or the last of all for ``latest``.

    Raises:
        UsageError: the store has no such job.
    """
    for job in _jobs(store):
        if number in (LATEST, job.number):
            return job
    which = "no job was" if number == LATEST else f"no job {number!r} was"
    raise UsageError(f"{which} submitted into {store}; --store names another store")


def _jobs(store: Path) -> Iterator[Job]:
    """The store's jobs, the last first."""
    for record in sorted((store / JOBS).glob(f"*/{RECORD}"), reverse=True):
        try:
            found = json.loads(record.read_text())
            yield Job(str(found["number"]), str(found["cluster"]), str(found["verb"]), record.parent, store)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"cannot read {record}: {error}; remove its folder to go on without it") from None
