"""py-spy on every rank of a real group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.profiling.profile_program import COLLECTIVE, profile


def test_py_spy_gives_a_flame_graph_and_stacks_of_every_rank(tmp_path: Path) -> None:
    done = profile(tmp_path, *COLLECTIVE, "--with", "py-spy", "--seconds", "1", "--output", "out", "--json")
    (case,) = json.loads(done.stdout)["cases"]
    if "Permission" in case["reason"] or "ptrace" in case["reason"]:
        pytest.skip(f"no process may trace another here: {case['reason']}")
    assert done.returncode == 0, case["reason"]
    names = [Path(file).name for file in case["files"]]
    assert sorted(names) == ["rank0.stacks.txt", "rank0.svg", "rank1.stacks.txt", "rank1.svg"]
    for rank in (0, 1):
        assert "<svg" in (tmp_path / "out" / f"rank{rank}.svg").read_text()
        lines = (tmp_path / "out" / f"rank{rank}.stacks.txt").read_text().splitlines()
        samples = sum(int(line.rpartition(" ")[2]) for line in lines)
        assert samples > 20
        assert any("suites/" in line or "distributed" in line for line in lines)
