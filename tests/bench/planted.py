"""A git repository with a small package whose suite is as slow as a commit decides, and a ``bench`` that has the gate.

The suite's work is a sleep: how long it takes, the machine's load does not change, so that tests of the
gate's machinery are about the machinery.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.program import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "planted"
version = "1"
[project.entry-points."bench.suites"]
planted = "planted.suite:PlantedSuite"
[tool.setuptools]
packages = ["planted"]
"""
SUITE = '''
"""Sleeps."""
import time
from bench.definitions import LATENCY
from bench.suite import Axis, Metric, Suite, Workload
from planted.slowness import FACTOR


class Sleep(Workload):
    def __init__(self, seconds):
        self._seconds = seconds

    def run(self):
        time.sleep(self._seconds)

    def check(self):
        return 0


class PlantedSuite(Suite):
    name = "planted"
    summary = "sleeps"
    method_version = 1
    metrics = (Metric("latency", LATENCY),)
    axes = (Axis("milliseconds", "int", "of sleep"), Axis("kind", "str", "whether the planted slowness hits it"))
    presets = {
        preset: {"milliseconds": (4,), "kind": ("hit", "not*hit")} for preset in ("quick", "standard", "full")
    }

    def setup(self, case, context):
        return Sleep(case["milliseconds"] / 1e3 * (FACTOR if case["kind"] == "hit" else 1.0))
'''
BENCH = """#!{python}
from bench import cli
from bench.gate_command import gate
from bench.noise_command import noise

verbs = {{command.name or command.callback.__name__ for command in cli.app.registered_commands}}
for name, verb in (("gate", gate), ("noise", noise)):
    if name not in verbs:
        cli.app.command(name)(verb)
cli.main()
"""


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def plant(folder: Path, factor: float = 1.0) -> Path:
    """A repository with one commit, on branch ``main``."""
    (folder / "planted").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / ".gitignore").write_text("__pycache__/\n*.egg-info/\nresults/\n")
    (folder / "planted" / "__init__.py").write_text("")
    (folder / "planted" / "suite.py").write_text(SUITE)
    slow_down(folder, factor)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def slow_down(folder: Path, factor: float) -> None:
    """Change the working tree."""
    (folder / "planted" / "slowness.py").write_text(f"FACTOR = {factor}\n")


def commit(folder: Path) -> str:
    """Commit all; returns the commit."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a change")
    return git(folder, "rev-parse", "HEAD")


def put_bench(folder: Path) -> Path:
    """Put a program ``bench`` into a folder, for the path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "bench"
    program.write_text(BENCH.format(python=sys.executable))
    program.chmod(0o755)
    return folder


def search_path(*folders: Path) -> str:
    """``PYTHONPATH`` with the project after these folders."""
    return ":".join([*map(str, folders), str(ROOT)])
