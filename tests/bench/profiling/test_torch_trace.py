"""Torch's profiler on every rank of a real group, and the traces merged on one clock."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

from bench.trace.breakdown import break_down_files
from tests.bench.profiling.profile_program import COLLECTIVE, profile

if TYPE_CHECKING:
    from pathlib import Path


def test_torch_traces_of_every_rank_and_one_of_all(tmp_path: Path) -> None:
    done = profile(tmp_path, *COLLECTIVE, "--output", "out", "--iterations", "4", "--json")
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    files = [tmp_path / file for file in case["files"]]
    assert [file.name for file in files] == ["rank0.json.gz", "rank1.json.gz", "merged.json.gz"]
    assert case["status"] == "ok"
    assert case["remarks"][0].startswith("clocks of the ranks agree to ")
    ranks = break_down_files(files[:2])
    for rank in ranks:
        assert [step.step for step in rank.steps] == [0, 1, 2, 3]
        assert set(rank.calls) >= {"all_gather"}
        assert rank.mean_step
        assert [each.name for each in rank.mean_step.collectives] == ["all_gather"], "barriers are outside of steps"
    merged = break_down_files([files[2]])
    assert [rank.rank for rank in merged] == [0, 1]

    # No rank can leave an all-gather before every rank has come to it, on a clock that they share.
    document = json.loads(gzip.decompress(files[2].read_bytes()))
    error_us = sum(clock["error_us"] for clock in document["benchClocks"].values())
    assert error_us < 2000
    rank_of = {pid: entry["rank"] for entry in document["benchMergedRanks"] for pid in entry["pids"]}
    steps: dict[str, dict[int, tuple[float, float]]] = {}
    for event in document["traceEvents"]:
        if event["name"].startswith("ProfilerStep"):
            steps.setdefault(event["name"], {})[rank_of[event["pid"]]] = (event["ts"], event["ts"] + event["dur"])
    assert len(steps) == 4
    for by_rank in steps.values():
        assert max(start for start, _ in by_rank.values()) <= min(end for _, end in by_rank.values()) + error_us
    starts = sorted(start for by_rank in steps.values() for start, _ in by_rank.values())
    assert starts[0] >= 0
    assert not (tmp_path / "results").exists(), "nothing is stored"
