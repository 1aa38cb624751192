"""The compressed all-gather's suite: its cases, and gathers of real ranks against the shards that each rank has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from bench.suite import PRESETS, Case, Context, Preset, Site
from suites.allgather_compressed import MODES, SELECTIONS, CompressedAllGatherSuite
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from suites.compressed_gathers import CompressedGathers

SUITE = CompressedAllGatherSuite()
SIZE = 64 << 10
RUNS = 5


def case_of(ranks: int, **changes: Any) -> Case:
    params = {"ranks": ranks, "dtype": "bfloat16", "bytes": SIZE, "mode": "auto", "change_rate": 0.01}
    return Case({**params, "spread": "scattered", "selection": "all", "layers": 1, **changes})


def prepared(case: Case, context: Context) -> CompressedGathers:
    workload: Any = SUITE.setup(case, context)
    return workload


def measured(case: Case, context: Context) -> tuple[int, list[float]]:
    """Wrong elements and byte ratios of some runs, as the harness makes them."""
    assert SUITE.keeps(case)
    assert SUITE.skip_reason(case, context.site) is None
    workload = prepared(case, context)
    for _ in range(RUNS):
        for call in (workload.run, workload.baseline):
            workload.prepare()
            context.group.barrier()
            call()
    outcome = workload.check(), list(workload.observations()["byte_ratio"])
    workload.close()
    return outcome


VARIATIONS: tuple[dict[str, Any], ...] = (
    *({"mode": mode} for mode in MODES),
    {"dtype": "float16"},
    {"dtype": "float32"},
    {"change_rate": 0.0},
    {"change_rate": 1.0},
    {"spread": "clustered"},
    {"layers": 3},
    {"selection": "none", "change_rate": 0.0},
    {"bytes": 100},
)


@pytest.mark.parametrize("world", [2, 3])
def test_every_rank_gets_every_shard(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        return [measured(case_of(world, **changes), context)[0] for changes in VARIATIONS]

    assert run_world(world, body, tmp_path) == [[0] * len(VARIATIONS)] * world


def test_byte_ratios_follow_the_rate(tmp_path: Path) -> None:
    def body(context: Context) -> dict[str, float]:
        cases: dict[str, dict[str, Any]] = {
            "still": {"change_rate": 0.0},
            "moving": {"change_rate": 0.01},
            "blocks": {"change_rate": 0.01, "mode": "block"},
            "clusters": {"change_rate": 0.01, "mode": "block", "spread": "clustered"},
            "plain": {"change_rate": 0.0, "selection": "none"},
        }
        ratios = {}
        for name, changes in cases.items():
            _, samples = measured(case_of(2, bytes=1 << 20, **changes), context)
            # A sample a run, and one that the check's runs share.
            assert len(samples) == RUNS + 1
            ratios[name] = samples[RUNS // 2]
        return ratios

    ratios = run_world(2, body, tmp_path)[0]
    assert ratios["plain"] == 1
    assert 0.5 < ratios["still"] <= 0.505
    assert ratios["still"] < ratios["moving"] < 0.54
    assert ratios["still"] < ratios["clusters"] < 0.54
    assert ratios["moving"] < ratios["blocks"] < 0.70


def test_auto_takes_what_gains_and_all_ranks_agree(tmp_path: Path) -> None:
    def body(context: Context) -> list[tuple[int, bool]]:
        outcome = []
        for size in (4096, SIZE, 4096):
            workload = prepared(case_of(2, bytes=size, selection="auto"), context)
            workload.run()
            outcome.append((workload.check(), bool(workload._gathers[0].plan.selected)))
            workload.close()
        assert len(context.scratch) == 1
        assert len(next(iter(context.scratch.values()))) == 2, "a size is calibrated once"
        return outcome

    first, second = run_world(2, body, tmp_path, timeout_s=100)
    assert first == second
    assert [wrong for wrong, _ in first] == [0, 0, 0]
    assert not first[0][1], "4 KiB through loopback cannot gain"


@pytest.mark.parametrize("outs", ["_outs", "_plain_outs"])
def test_one_wrong_bit_on_one_rank_is_found(outs: str, tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload = prepared(case_of(2), context)
        call = workload.run if outs == "_outs" else workload.baseline

        def wrong() -> None:
            call()
            if context.group.rank == 1:
                getattr(workload, outs)[0].view(torch.int16)[-1] ^= 1

        setattr(workload, "run" if outs == "_outs" else "baseline", wrong)
        workload.run()
        found = workload.check()
        workload.close()
        return found

    assert run_world(2, body, tmp_path) == [0, 3 if outs == "_outs" else 2]


def test_gathers_that_move_nothing_are_wrong_everywhere(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload = prepared(case_of(2), context)
        workload._lane.close()
        workload.run = lambda: None  # type: ignore[method-assign]
        return workload.check()

    values = 2 * SIZE // 2
    assert min(run_world(2, body, tmp_path)) > 1.9 * values


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_cases_that_can_run(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert len({case.id for case in cases}) == len(cases)
    assert all(SUITE.skip_reason(case, Site(world=case["ranks"])) is None for case in cases)
    assert {case["change_rate"] for case in cases} >= {0.0, 0.01, 1.0}
    assert any(case["bytes"] == 16 << 20 for case in cases)
    if preset != "quick":
        assert {case["selection"] for case in cases} == set(SELECTIONS)


def test_what_would_be_the_same_is_measured_once() -> None:
    assert not SUITE.keeps(case_of(2, change_rate=0.0, spread="clustered"))
    assert not SUITE.keeps(case_of(2, change_rate=1.0, spread="clustered"))
    assert SUITE.keeps(case_of(2, change_rate=0.5, spread="clustered"))
    assert [rate for rate in (0.0, 0.5) if SUITE.keeps(case_of(2, selection="none", change_rate=rate))] == [0.0]


def test_reasons_to_skip() -> None:
    assert SUITE.skip_reason(case_of(1), Site()) == "a collective operation needs at least 2 ranks"
    assert SUITE.skip_reason(case_of(2, change_rate=1.5), Site()) == "a change rate is at most 1, not 1.5"
    reason = SUITE.skip_reason(case_of(2, bytes=6, dtype="float32"), Site())
    assert reason == "6 bytes are no whole number of float32 values"


def test_rows_say_what_codes() -> None:
    placed = SUITE.placed_params(case_of(2), Site(world=2, cores=2))
    assert placed["threads"] == 2
    assert str(placed["codec"]).split()[0] in ("native", "reference")


def test_memory_grows_with_all_shards() -> None:
    size = 16 << 20
    by_ranks = [SUITE.memory_bytes(case_of(ranks, bytes=size), Site()) for ranks in (2, 4)]
    assert by_ranks[1] - by_ranks[0] >= 2 * 4 * size
    assert SUITE.memory_bytes(case_of(2, bytes=size, layers=2), Site()) > by_ranks[0]
