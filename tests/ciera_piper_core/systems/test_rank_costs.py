"""What ranks cost by themselves: how parts follow from shallow models, and that nothing of it is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch.distributed as dist

from ciera_piper_core.systems import rank_costs
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.rank_costs import ModelCosts, PartCosts, RankCosts, measure_rank_costs
from ciera_piper_core.systems.system import parse_options
from tests.ciera_piper_core.systems.pipelined_family import all_ranks, recipe
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

SYSTEMS: dict[str, Any] = {"fsdp": FSDPSystem, "piper": PiperSystem}


def test_parts_of_a_model_follow_from_one_and_two_layers() -> None:
    asked = recipe()
    dense, moe = asked.architecture.layers[:2]
    # The dense layer alone, with another of it, with one of experts; all twice as long in one round of three.
    usual = np.array([[5.0, 9.0, 3.0], [6.0, 11.0, 4.0], [8.0, 15.0, 3.5]])
    found = rank_costs._of_model(np.array([usual, 2 * usual, usual]), asked, [dense, moe])
    costs = {dense: PartCosts(1, 2, 1), moe: PartCosts(3, 6, 0.5)}
    assert found.layers == tuple(costs[layer] for layer in asked.architecture.layers)
    assert found.rest == PartCosts(4, 7, 2)
    assert found.total == PartCosts(4 + 2 * (1 + 3), 7 + 2 * (2 + 6), 2 + 2 * (1 + 0.5))
    assert found.total.passes == 12 + 23


def test_noise_makes_nothing_cheaper_than_nothing() -> None:
    asked = recipe()
    dense, moe = asked.architecture.layers[:2]
    times = np.array([[[5.0, 9.0, 3.0], [4.0, 11.0, 3.0], [8.0, 15.0, 3.0]]])
    found = rank_costs._of_model(times, asked, [dense, moe])
    assert found.layers[0] == PartCosts(0, 2, 0)


def test_ranks_that_work_together_are_never_quicker() -> None:
    quick, slow = (ModelCosts((), PartCosts(each, each, each)) for each in (1.0, 3.0))
    assert RankCosts(quick, slow).slowdown == 3
    assert RankCosts(slow, quick).slowdown == 1


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_rank_is_measured_for_itself_and_all_know_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(rank_costs, "ROUNDS", 2)
    steps = 3 * rank_costs.ROUNDS  # of three shallow models

    def body(context: Any) -> Any:
        asked = replace(recipe(), global_batch=4)
        options = parse_options(SYSTEMS[name], {"pp": "1", "ep": "1"} if name == "piper" else {})
        groups, told = dist.distributed_c10d._world.pg_map.copy(), []
        costs = measure_rank_costs(SYSTEMS[name], asked, all_ranks(), options, alive=lambda: told.append(1))
        left = [group for group in dist.distributed_c10d._world.pg_map if group not in groups]
        return costs, len(told), len(left)

    (first, told, left), (second, *others) = run_world(2, body, tmp_path)
    assert first == second
    assert len(first.alone.layers) == len(recipe().architecture.layers)
    for costs in (first.alone, first.together):
        assert costs.total.forward > 1e-4
        assert costs.total.backward > 1e-4
        assert costs.total.update > 1e-5
    untimed = 3 * rank_costs.UNTIMED
    assert (told, others[0]) == (2 * (steps + untimed), steps + untimed)
    assert left == others[1] == 0
