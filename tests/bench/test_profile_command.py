"""``bench profile`` as users call it: what it names at its end, and calls that cannot be met."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.profiling.profile_program import COLLECTIVE, profile


def test_every_case_has_a_folder_and_the_default_is_in_the_store(tmp_path: Path) -> None:
    done = profile(tmp_path, *COLLECTIVE, "--set", "bytes=1KiB,4KiB", "--iterations", "1", "--store", "kept")
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    assert len(files) == 6
    assert all((tmp_path / file).exists() for file in files)
    assert {file.parts[:2] for file in files} == {("kept", "profiles")}
    names = {file.parent.name for file in files}
    assert len(names) == 2
    assert all(name.startswith(("1-collectives", "2-collectives")) for name in names)
    assert "1/2: collectives op=all_gather" in done.stderr
    assert "ui.perfetto.dev" in done.stderr


@pytest.mark.skipif(shutil.which("nsys") is not None, reason="nsys is installed here")
def test_a_missing_tool_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    done = profile(tmp_path, *COLLECTIVE, "--with", "nsys")
    assert done.returncode == 2
    assert done.stderr.startswith("bench: --with nsys: no program nsys on PATH")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("collectives", "--preset", "full"), "cases are too many to profile"),
        (("collectives", "--with", "perf"), "--with takes torch, py-spy, nsys, ncu"),
        (("nothing",), "unknown suite 'nothing'"),
        (("collectives", "--select", "op=nothing"), ""),
        ((*COLLECTIVE, "--output", "/proc/none"), "cannot write into /proc/none"),
    ],
)
def test_impossible_calls(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = profile(tmp_path, *arguments)
    assert done.returncode in (2, 4)
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
