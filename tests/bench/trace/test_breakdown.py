"""Breakdowns with known answers, of real traces, and beside HolisticTraceAnalysis on the same files."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.trace.breakdown import Breakdown, RankBreakdown, break_down_files, mean
from bench.trace.kineto import read_document
from tests.bench.trace.made_up import ALL_GATHER, GEMM, KNOWN, REDUCE_SCATTER, SEND_RECV, event, kernel, step, write

DATA = Path(__file__).parents[2] / "data" / "traces"
TRAINING = [DATA / f"training_128_ranks_rank{rank}.json.gz" for rank in (0, 1)]


def one(path: Path) -> RankBreakdown:
    (rank,) = break_down_files([path])
    return rank


def parts(found: Breakdown) -> dict[str, float]:
    names = ("duration", "compute", "communication", "overlap", "exposed", "copies", "idle", "residual")
    return {name: round(getattr(found, f"{name}_us"), 6) for name in names}


def collectives(found: Breakdown) -> dict[str, tuple[float, float]]:
    return {each.name: (round(each.time_us, 6), round(each.exposed_us, 6)) for each in found.collectives}


def test_a_step_whose_parts_are_known(tmp_path: Path) -> None:
    rank = one(write(tmp_path / "a.json.gz", KNOWN))
    (found,) = rank.steps
    assert (rank.label, rank.kind, found.step) == ("rank 0", "gpu", 4)
    assert parts(found) == {
        "duration": 100,
        "compute": 40,
        "communication": 35,
        "overlap": 10,
        "exposed": 25,
        "copies": 5,
        "idle": 10,
        "residual": 20,
    }
    assert collectives(found) == {"all_gather": (27.5, 17.5), "reduce_scatter": (7.5, 7.5)}
    assert rank.calls == {"all_gather": 2, "reduce_scatter": 1}
    assert rank.busy_us == {"all_gather": 30, "reduce_scatter": 10}
    assert found.communication_share("all_gather") == pytest.approx(27.5 / 35)
    shares = found.to_dict()
    assert sum(shares["shares"].values()) == pytest.approx(1)
    assert sum(shares["communication_shares"].values()) == pytest.approx(1)
    assert parts(rank.whole) == parts(found)


def test_an_all_to_all_is_told_from_sends_by_its_launch(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "nccl:all_to_all", 0, 10, 1),
        event("cuda_runtime", "cudaLaunchKernelExC", 5, 1, 1, correlation=11),
        event("user_annotation", "nccl:send", 20, 10, 1),
        event("cuda_runtime", "cudaLaunchKernelExC", 25, 1, 1, correlation=12),
        event("cuda_runtime", "cudaLaunchKernelExC", 45, 1, 1, correlation=13),
        kernel(SEND_RECV, 100, 10, correlation=11),
        kernel(SEND_RECV, 120, 20, correlation=12),
        kernel(SEND_RECV, 150, 30, correlation=13),
        kernel("ncclDevKernel_Generic(x)", 200, 40, **{"Collective name": "_reduce_scatter_base"}),
    ]
    found = one(write(tmp_path / "a.json", events)).whole
    assert {name: time for name, (time, _) in collectives(found).items()} == {
        "all_to_all": 10,
        "p2p": 50,
        "reduce_scatter": 40,
    }


def test_marks_on_the_device_are_steps_up_to_the_next(tmp_path: Path) -> None:
    events = [
        step(1, 0, 50),
        step(2, 50, 50),
        event("gpu_user_annotation", "ProfilerStep#1", 100, 40, 7),
        event("gpu_user_annotation", "ProfilerStep#2", 160, 40, 7),
        kernel(GEMM, 100, 40),
        kernel(GEMM, 160, 40),
    ]
    first, second = one(write(tmp_path / "a.json", events)).steps
    assert (parts(first)["duration"], parts(first)["compute"], parts(first)["idle"]) == (60, 40, 20)
    assert (parts(second)["duration"], parts(second)["idle"]) == (40, 0)


def test_on_a_host_ops_count_and_unseen_work_in_regions_is_residual(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        event("user_annotation", "codec.encode", 0, 20, 1),
        event("cpu_op", "aten::mm", 10, 30, 1),
        event("cpu_op", "c10d::_reduce_scatter_base_", 50, 10, 1),
        event("cpu_op", "aten::copy_", 52, 5, 1),  # part of the communication
        event("user_annotation", "gloo:all_reduce", 55, 25, 2),  # what gloo runs for it
        event("cpu_op", "aten::copy_", 75, 5, 2),
    ]
    rank = one(write(tmp_path / "a.json", events))
    (found,) = rank.steps
    assert rank.kind == "cpu"
    assert parts(found) == {
        "duration": 100,
        "compute": 30,
        "communication": 30,
        "overlap": 0,
        "exposed": 30,
        "copies": 0,
        "idle": 30,
        "residual": 10,
    }
    assert collectives(found) == {"reduce_scatter": (30, 30)}
    assert rank.calls == {"reduce_scatter": 1}


def test_every_collective_of_a_real_gloo_trace_is_named() -> None:
    rank = one(DATA / "gloo_rank0.json.gz")
    assert rank.calls == {
        "all_gather": 4,
        "reduce_scatter": 2,
        "all_reduce": 2,
        "all_to_all": 2,
        "broadcast": 2,
        "p2p": 4,
        "barrier": 2,
    }
    assert [found.step for found in rank.steps] == [0, 1]


def test_a_real_training_step_has_its_all_gathers_told_apart() -> None:
    ranks = break_down_files(TRAINING)
    assert [rank.label for rank in ranks] == ["rank 0", "rank 1"]
    for rank in ranks:
        assert rank.calls == {"all_gather": 2, "all_reduce": 4, "all_to_all": 4}
        assert [found.step for found in rank.steps] == [551, 552]
        for found in (rank.whole, *rank.steps):
            assert found.residual_us == pytest.approx(0, abs=1e-6)
            assert sum(each.exposed_us for each in found.collectives) == pytest.approx(found.exposed_us)


def test_two_files_of_one_rank_are_told_apart(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, KNOWN) for name in ("a.json", "b.json")]
    assert [rank.label for rank in break_down_files(paths)] == ["rank 0 (a.json)", "rank 0 (b.json)"]


def test_a_mean_adds_up_and_there_is_none_of_nothing() -> None:
    steps = [found for rank in break_down_files(TRAINING) for found in rank.steps]
    found = mean(steps, "steps")
    total = found.compute_us + found.exposed_us + found.copies_us + found.idle_us + found.residual_us
    assert total == pytest.approx(found.duration_us)
    with pytest.raises(ValueError, match="no breakdowns"):
        mean([], "steps")


def made_up_trace(seed: int) -> list[dict[str, Any]]:
    """Kernels of three streams that overlap at random, as a busy GPU has them."""
    rng = random.Random(seed)
    events = []
    for stream, names in ((7, (GEMM,)), (20, (ALL_GATHER, REDUCE_SCATTER)), (24, (SEND_RECV,))):
        at = 1000.0
        for _ in range(200):
            at += rng.randrange(0, 60)
            duration = rng.randrange(1, 200)
            events.append(kernel(rng.choice(names), at, duration, stream))
            at += duration
    events.append(event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 3000, 5000, 30, stream=30))
    return events


PEER = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
time = analysis.get_temporal_breakdown(visualize=False).iloc[0]
overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
names = ("idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg")
print("found", json.dumps([float(time[name]) for name in names] + [float(overlap["comp_comm_overlap_pctg"])]))
"""


@pytest.mark.parametrize("what", ["training", "data_parallel", 1, 2])
def test_it_agrees_with_holistic_trace_analysis(tmp_path: Path, what: str | int) -> None:
    if importlib.util.find_spec("hta") is None:
        pytest.skip("HolisticTraceAnalysis is not installed (pip install HolisticTraceAnalysis)")
    sources = {"training": TRAINING[0], "data_parallel": DATA / "data_parallel_rank0.json.gz"}
    events = made_up_trace(what) if isinstance(what, int) else read_document(sources[what])["traceEvents"]
    # Where steps are marked, HolisticTraceAnalysis drops kernels whose launch it does not see in one.
    path = write(tmp_path / "rank0.json", [each for each in events if "ProfilerStep" not in each["name"]])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEER, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        # Otherwise it rounds every time to whole microseconds.
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("found ")).removeprefix("found ")
    )
    ours = one(path).whole
    non_compute = ours.exposed_us + ours.copies_us + ours.residual_us
    shares = [ours.share(us) for us in (ours.idle_us, ours.compute_us, non_compute)]
    assert [100 * share for share in (*shares, ours.overlap_share)] == pytest.approx(theirs, rel=0.01, abs=0.02)
