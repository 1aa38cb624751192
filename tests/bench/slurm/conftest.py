"""One Slurm cluster for all tests of this folder, and the verb ``bench submit`` called on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bench.slurm import cluster as emulated
from tests.program import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
from bench.cli import app, main
from bench.submit_command import submit
if submit not in [command.callback for command in app.registered_commands]:
    app.command()(submit)
main()
"""


class Submitter:
    """Calls ``bench`` in a working folder, with the cluster at hand."""

    def __init__(self, folder: Path, slurm: emulated.SlurmCluster) -> None:
        self.folder = folder
        self.slurm = slurm
        self.store = folder / "results" / "store"

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """``bench submit`` with these arguments, running."""
        return subprocess.Popen(
            program(*arguments),
            cwd=self.folder,
            env=environment(**self.slurm.environment, **changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """``bench submit`` with these arguments, to its end."""
        process = self.start(*arguments, **changes)
        try:
            out, err = process.communicate(timeout=90)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def program(*arguments: str) -> list[str]:
    """The command line of ``bench submit`` with the Python that runs the tests."""
    return [sys.executable, "-c", PROGRAM, "submit", *arguments]


@pytest.fixture(scope="session")
def slurm() -> Iterator[emulated.SlurmCluster]:
    """The cluster, started once, and ended whatever happens."""
    reason = emulated.why_not()
    if reason:
        pytest.skip(reason)
    # pytest's own folder has too long a path for a socket.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with emulated.SlurmCluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def submit(slurm: emulated.SlurmCluster, tmp_path: Path) -> Submitter:
    """``bench submit`` in an empty folder, with a blank and a quote in its path."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    return Submitter(folder, slurm)
