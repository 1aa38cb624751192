"""Processes in which something is really broken: no programs on PATH, no packages, a limit, a forbidden call."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
NEEDED_BY_DOCTOR = ("psutil", "rich", "markdown_it", "mdurl", "pygments")


def _run_python(code: str, *, python: str = sys.executable, before: list[str] | None = None, **variables: str) -> str:
    """What a new process prints; ``before`` is a command that starts it."""
    search = ROOT if python != sys.executable else os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": str(search), **variables}
    command = [*(before or []), python, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs code in a new process and gives what it prints: ``(code, python=, before=, **variables)``."""
    return _run_python


@pytest.fixture
def check_elsewhere() -> Callable[..., dict[str, Any]]:
    """Runs one check in another process: ``(module, call, first=code before it, **of run_python)``, gives the check."""

    def run(module: str, call: str, first: str = "", **options: Any) -> dict[str, Any]:
        code = f"{first}\nimport json\nfrom bench.doctor import {module}\nprint(json.dumps({module}.{call}.to_dict()))"
        check: dict[str, Any] = json.loads(_run_python(code, **options))
        return check

    return run


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python of a new virtual environment with only what the doctor itself imports."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED_BY_DOCTOR:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (site_packages / name).symlink_to(Path(spec.origin).parent)
    return str(folder / "bin" / "python")
