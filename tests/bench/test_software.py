"""Versions without imports, against what the imports would say."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.software import git_state, nccl_version, torch_build

if TYPE_CHECKING:
    from pathlib import Path


def run(code: str, folder: Path, **variables: str) -> str:
    """What a new process prints that starts in a folder and finds bench there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def test_torch_build_is_what_torch_says() -> None:
    import torch

    assert torch_build() == {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}


@pytest.mark.gpu
def test_nccl_version_is_what_torch_says() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    assert (nccl_version() or "").split(".")[:3] == [str(part) for part in torch.cuda.nccl.version()]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("__version__ = '2.14.0+cu130'\ncuda: str | None = '13.0'\nhip = None", ("2.14.0+cu130", "13.0", None)),
        ("__version__ = '2.14.0'\nhip: str = '7.2'", ("2.14.0", None, "7.2")),
        ("this is no Python", (None, None, None)),
        ("\0", (None, None, None)),
        ("cuda = print('ran')", (None, None, None)),
    ],
)
def test_torch_builds_of_other_kinds(tmp_path: Path, source: str, expected: tuple[str | None, ...]) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "version.py").write_text(source)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from bench.software import torch_build; print(tuple(torch_build().values()))"
    assert run(code, tmp_path) == str(expected)


def test_nccl_of_the_system_goes_by_its_file_name(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text("__version__ = '2.14.0'\ncuda = '13.0'")
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "libnccl.so.2.27.3").touch()
    (libraries / "libnccl.so.2").symlink_to("libnccl.so.2.27.3")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from bench.software import nccl_version; print(nccl_version())"
    assert run(code, tmp_path, LD_LIBRARY_PATH=str(libraries)) == "2.27.3"


def test_git_state_of_a_working_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state() is None
    git(tmp_path, "init")
    assert git_state() is None, "there is no commit yet"
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    (tmp_path / "untracked").touch()
    clean = git_state()
    assert clean is not None
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "file").write_text("two")
    assert git_state() == {"commit": clean["commit"], "dirty": True}


def test_a_repository_runs_no_program_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init")
    (tmp_path / "hook").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "hook").chmod(0o755)
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    git(tmp_path, "config", "core.fsmonitor", str(tmp_path / "hook"))
    assert git_state() is not None
    assert not (tmp_path / "ran").exists()


def test_without_git_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state() is None
