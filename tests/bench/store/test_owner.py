"""Who writes, and whether it lives: only ever dead when that is sure."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.store.owner import is_alive, this_process


def test_this_process_lives() -> None:
    assert is_alive(this_process()) is True
    assert this_process()["pid"] == os.getpid()


def test_a_description_survives_json() -> None:
    assert is_alive(json.loads(json.dumps(this_process()))) is True


def test_another_process_lives_until_it_ends(fork: Any) -> None:
    read, write = os.pipe()
    child = fork(lambda: (os.write(write, json.dumps(this_process()).encode()), signal.pause()))
    description = json.loads(os.read(read, 4096))
    assert description["pid"] == child.pid
    assert is_alive(description) is True
    child.kill()
    _until(lambda: is_alive(description) is False)  # a zombie until it is waited for
    child.wait()
    assert is_alive(description) is False


def test_a_process_id_that_is_used_again_is_another_process() -> None:
    here = this_process()
    assert is_alive(here | {"pid_started": here["pid_started"] - 1}) is False


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"boot_id": "another"}, {"pid_namespace": 1}])
def test_elsewhere_nothing_is_known(other: dict[str, Any]) -> None:
    assert is_alive(this_process() | {"pid": 2**22 + 1} | other) is None


def test_nothing_is_known_of_an_empty_description() -> None:
    assert is_alive({}) is None


def test_a_command_with_blanks_and_parentheses_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) (b R 1 2"
    odd.symlink_to(sys.executable)
    script = (
        "import json; from bench.store.owner import *; print(json.dumps([this_process(), is_alive(this_process())]))"
    )
    # The symlink lies outside of a virtual environment, so its packages have to be named.
    path = os.pathsep.join([str(Path(__file__).parents[3]), *site.getsitepackages()])
    output = subprocess.run(
        [str(odd), "-c", script], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path}
    ).stdout
    description, alive = json.loads(output)
    assert alive is True
    assert description["pid_started"] >= this_process()["pid_started"]


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
