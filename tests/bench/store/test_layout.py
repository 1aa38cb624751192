"""Names of files, and files that appear whole or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from bench.store.layout import LEFTOVER_AGE_S, left_over, list_files, new_file, part_of, part_path, temporary_files

RUN_ID = "20250101T000000-0a1b2c3d"


@pytest.mark.parametrize("part", [1, 2, 17])
def test_a_name_tells_run_and_part(tmp_path: Path, part: int) -> None:
    for suffix in (".jsonl", ".parquet"):
        assert part_of(part_path(tmp_path, RUN_ID, part, suffix)) == (RUN_ID, part)


@pytest.mark.parametrize("name", ["a.txt", "archive.20250101T000000-0a.parquet", ".a.jsonl", "a.0.jsonl", "a.01.jsonl"])
def test_other_names_tell_nothing(name: str) -> None:
    assert part_of(Path(name)) is None


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert list_files(tmp_path / "none") == []


def test_a_new_file_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "a.parquet"
    target.parent.mkdir()
    with new_file(target) as path:
        path.write_text("text")
        assert not target.exists()
        assert temporary_files(tmp_path) == [path]
        assert not left_over(path)
    assert (target.read_text(), os.listdir(target.parent)) == ("text", ["a.parquet"])


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted_write(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_maker_died_is_left_over(tmp_path: Path, fork: Any) -> None:
    (tmp_path / "runs").mkdir()

    def die() -> None:
        with new_file(tmp_path / "runs" / "a.parquet") as path:
            path.write_text("half")
            os._exit(3)

    assert fork(die).wait().status == 3
    (path,) = temporary_files(tmp_path)
    assert left_over(path)


def test_a_file_of_another_machine_is_left_over_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / ".a.parquet~elsewhere~boot~1~2~3.tmp"
    path.write_text("")
    assert not left_over(path)
    os.utime(path, (0, time.time() - LEFTOVER_AGE_S - 1))
    assert left_over(path)


def _interrupted_write(target: Path) -> None:
    with new_file(target) as path:
        path.write_text("half")
        raise KeyboardInterrupt
