"""The folder of a job is found again by the job's number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.errors import StoreError, UsageError
from bench.slurm.folder import EXIT_CODE, RECORD, Job, find_job, new_folder, write_script

if TYPE_CHECKING:
    from pathlib import Path


def made(store: Path, number: str) -> Job:
    folder = new_folder(store)
    write_script(folder, "true\n")
    job = Job(number, "far", "run", folder, store)
    job.save()
    return job


def test_jobs_are_found_by_number_the_last_first(tmp_path: Path) -> None:
    old, other, new = made(tmp_path, "7"), made(tmp_path, "8"), made(tmp_path, "7")
    assert len({old.folder, other.folder, new.folder}) == 3
    assert find_job(tmp_path, "8") == other
    last = max((old, other, new), key=lambda job: job.folder.name)
    assert find_job(tmp_path, "latest") == last
    assert find_job(tmp_path, "7") == max((old, new), key=lambda job: job.folder.name)


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job '9' was submitted into"):
        find_job(tmp_path, "9")
    with pytest.raises(UsageError, match="no job was submitted into"):
        find_job(tmp_path, "latest")


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    job = made(tmp_path, "7")
    (job.folder / RECORD).write_text("{")
    with pytest.raises(StoreError, match=RECORD):
        find_job(tmp_path, "7")


def test_an_exit_code_is_a_number_or_nothing(tmp_path: Path) -> None:
    job = made(tmp_path, "7")
    assert job.noted_exit_code() is None
    (job.folder / EXIT_CODE).write_text("3\n")
    assert job.noted_exit_code() == 3
    (job.folder / EXIT_CODE).write_text("")
    assert job.noted_exit_code() is None


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        write_script(new_folder(tmp_path / "file"), "true\n")
