"""``pytest suites/``: the single-process suites run under pytest-benchmark, whose JSON holds what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SELECTION = "(memory and copy) or (attention and olmoe and 512 and forward_backward)"


@pytest.mark.alone
@pytest.mark.slow
def test_the_suites_run_under_pytest_benchmark(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    # What an outer pytest, or its workers, set is not for this one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "suites", "-k", SELECTION, f"--benchmark-json={output}"]
    command += ["-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr

    measured = json.loads(output.read_text())["benchmarks"]
    assert {entry["group"] for entry in measured} >= {"attention"}
    for entry in measured:
        info, stats = entry["extra_info"], entry["stats"]
        assert stats["rounds"] == 5
        assert stats["min"] > 0
        assert info["threads"] >= 1
        if entry["group"] == "memory":
            assert info["kernel"] == "copy"
            assert info["bytes"] == 2 * info["array_bytes"]
        else:
            assert (info["model"], info["sequence"], info["heads"]) == ("olmoe-1b-7b", 512, "mha")
            assert info["flops"] > 0
