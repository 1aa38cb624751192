"""``bench profile`` on ranks that torchrun started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.profiling.profile_program import CALL, COLLECTIVE
from tests.program import environment

FAULTY = ("tests.faulty_suite:FaultySuite", "--set", "number=0")


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "call.py").write_text(CALL)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*launcher, "call.py", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_ranks_of_a_launcher_write_one_set_of_files(tmp_path: Path) -> None:
    done = torchrun(tmp_path, *COLLECTIVE, "--iterations", "2")
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    assert [file.name for file in files] == ["rank0.json.gz", "rank1.json.gz", "merged.json.gz"]
    assert len({file.parent for file in files}) == 1
    assert all((tmp_path / file).exists() for file in files)


def test_a_lost_rank_is_named(tmp_path: Path) -> None:
    done = torchrun(tmp_path, *FAULTY, "--set", "fault=kill", "--output", "out")
    assert done.returncode != 0
    assert "failed in " in done.stderr
    assert "rank 1 died" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--with", "nsys"), "start them below the tool yourself"), (("--ranks", "4"), "--ranks 4 was asked for")],
)
def test_what_a_launcher_cannot_have(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = torchrun(tmp_path, *FAULTY, *arguments)
    assert done.returncode != 0
    assert said in done.stderr
