"""Tests marked ``alone`` never run beside another, also with several workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

TESTS_THAT_NOTE_WHEN_THEY_RUN = """
import time
from pathlib import Path
import pytest

def note(name):
    start = time.monotonic()
    time.sleep(0.1)
    Path(f"{name}.times").write_text(f"{start} {time.monotonic()}")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    note(f"alone{number}")

@pytest.mark.parametrize("number", range(8))
def test_beside_others(number):
    note(f"other{number}")
"""


def test_alone_tests_run_alone(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_times.py").write_text(TESTS_THAT_NOTE_WHEN_THEY_RUN)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone: alone\n")
    # The inner pytest is a run of its own, not a part of the one that this test belongs to.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    times = {path.stem: tuple(map(float, path.read_text().split())) for path in tmp_path.glob("*.times")}
    assert len(times) == 12
    overlapping = {
        frozenset((one, other))
        for one, other in combinations(times, 2)
        if times[one][0] < times[other][1] and times[other][0] < times[one][1]
    }
    assert [sorted(pair) for pair in overlapping if any(name.startswith("alone") for name in pair)] == []
