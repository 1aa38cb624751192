"""The suite of moving experts: its cases, what it finds, and a check that can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from bench.suite import PRESETS, Case, Context, Site
from suites.migration import NEVER, MigrationSuite
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

SUITE = MigrationSuite()


def case_of(**params: Any) -> Case:
    defaults: dict[str, Any] = {
        "model": "olmoe-1b-7b",
        "scale": "tiny",
        "ranks": 2,
        "skew": 0.5,
        "solver": "search",
        "spare": 0,
        "sequence": 32,
        "batch": 2,
        "interval": 100,
        "precision": "fp32",
    }
    return Case({**defaults, **params})


def test_presets_are_cases_that_can_run() -> None:
    for preset in PRESETS:
        cases = list(SUITE.cases(preset, {}))
        assert cases
        assert all(SUITE.skip_reason(case, Site(world=case["ranks"])) is None for case in cases)
        assert all(SUITE.memory_bytes(case, Site(world=case["ranks"])) > 0 for case in cases)


def test_paper_solver_has_no_spare_room() -> None:
    assert not SUITE.keeps(case_of(solver="paper", spare=2))
    assert SUITE.keeps(case_of(solver="paper"))


def test_skip_reasons() -> None:
    assert SUITE.skip_reason(case_of(ranks=1), Site()) == "experts move between at least 2 ranks"
    assert SUITE.skip_reason(case_of(ranks=32), Site()) == "16 experts leave some of 32 ranks without one"


@pytest.mark.parametrize("params", [{}, {"precision": "bf16", "spare": 2}, {"solver": "paper", "ranks": 3}])
def test_measures_both_placements_and_finds_nothing_wrong(tmp_path: Path, params: dict[str, Any]) -> None:
    case = case_of(**params)

    def body(context: Context) -> Any:
        workload = SUITE.setup(case, context)
        wrong = []
        for _ in range(3):
            workload.prepare()
            workload.run()
            wrong.append(workload.check())
        found = workload.observations()
        workload.close()
        return wrong, {name: list(samples) for name, samples in found.items()}, workload.work.bytes

    for wrong, found, moved in run_world(case["ranks"], body, tmp_path):
        assert wrong == [0, 0, 0]
        observed = {metric.key for metric in SUITE.metrics} - {"latency", "algbw"}
        assert found.keys() == observed
        assert 1 <= found["load[experts=after]"][0] < found["load[experts=before]"][0]
        assert found["moved_experts"][0] > 0
        assert found["moved_bytes"] == [moved]
        assert 0 < found["payback"][0] <= NEVER
        assert all(0 < share < 1 for share in found["amortised_share"])


def test_check_sees_an_expert_that_is_not_its_own(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload: Any = SUITE.setup(case_of(), context)
        workload.run()
        if context.group.rank == 1:
            with torch.no_grad():
                # Two experts in each other's slots, as a wrong table would have them.
                weights = workload._masters.masters["layer.experts.down"]
                weights.copy_(weights.flip(0))
        return int(workload.check())

    right, wrong = run_world(2, body, tmp_path)
    assert right == 0
    assert wrong > 1000


def test_check_sees_outputs_that_moving_changed(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload: Any = SUITE.setup(case_of(), context)
        workload._outputs["after"] += 0.1
        return int(workload.check())

    assert all(wrong > 1000 for wrong in run_world(2, body, tmp_path))
