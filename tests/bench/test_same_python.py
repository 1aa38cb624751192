"""Ranks import what their supervisor imports, whatever lies in the working folder."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.same_python import python_command
from tests.program import ROOT, environment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", ["", ".", "{here}", "{here}/"])
def test_a_process_that_imports_from_the_working_folder_has_ranks_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/lib", path.format(here=tmp_path)])
    assert python_command() == [sys.executable]


def test_others_have_ranks_that_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/lib", "/no/such/folder", str(ROOT)])
    assert python_command() == [sys.executable, "-P"]


def test_an_installed_program_does_not_measure_the_packages_of_the_folder_it_is_called_in(tmp_path: Path) -> None:
    for package in ("bench", "ciera_piper_core", "suites"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('the package of the working folder')\n")
    # -P stands for the program that pip installs, whose own folder is first on the path.
    program = [sys.executable, "-P", "-m", "bench.cli", "run", "memory", "--max-time=0.01", "--select=kernel=copy"]
    done = subprocess.run(
        program, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert " ok" in done.stderr
