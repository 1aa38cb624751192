"""Stacks of running and of stopped processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from bench.launch.stacks import dump_stack, dump_stacks, py_spy_path

CODE = """
import time
from bench.launch.stacks import allow_tracing
allow_tracing()
def waiting_here():
    print("up", flush=True)
    time.sleep(60)
waiting_here()
"""


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:  # type: ignore[misc]
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    yield process  # type: ignore[misc]
    process.kill()
    process.wait()


@pytest.mark.skipif(py_spy_path() is None, reason="py-spy is not installed")
@pytest.mark.parametrize("stopped", [False, True])
def test_the_stack_names_the_function(sleeper: subprocess.Popen[bytes], stopped: bool) -> None:
    if stopped:
        os.kill(sleeper.pid, signal.SIGSTOP)
    # The process may have printed and not yet gone to sleep, and reading does not pause it.
    for _ in range(5):
        stack = dump_stack(sleeper.pid)
        if "waiting_here" in stack:
            break
        time.sleep(0.2)
    assert "waiting_here" in stack


def test_what_has_no_stack_says_why(sleeper: subprocess.Popen[bytes]) -> None:
    stacks = dump_stacks({0: sleeper.pid, 5: 2**22 + 1})
    assert list(stacks) == [0, 5]
    assert stacks[5].startswith("no stack: ")
    assert "\n" not in stacks[5]
