"""Experts move in every system that spreads them, whatever else it does with ranks; and no loss tells."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.moe.migration.trigger import Policy
from ciera_piper_core.systems import load_system
from ciera_piper_core.systems.expert_migration import attach
from ciera_piper_core.systems.replicated import ReplicatedSystem
from ciera_piper_core.systems.system import Ranks, parse_options
from tests.ciera_piper_core.moe.expert_worlds import by_value, group_of, loaded
from tests.ciera_piper_core.moe.migration.migrated_training import WORLD, recipe, trained
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

POLICY = Policy(check_every=2, window=2, threshold=1.02, target=1.0, margin=0, spare_experts=1)


def built(context: Context, name: str, options: dict[str, str]) -> ReplicatedSystem:
    # Two nodes, so that hierarchical exchanges are what they are.
    ranks = Ranks(group_of(context), even_placement(WORLD, 2), torch.device("cpu"))
    system = load_system(name)
    whole = recipe(microbatches=4 if name == "piper" else 2)
    # A fourth layer, for schedules with two stages a rank.
    architecture = replace(whole.architecture, layers=(*whole.architecture.layers, whole.architecture.layers[0]))
    made = system(replace(whole, architecture=architecture), ranks, parse_options(system, options))
    assert isinstance(made, ReplicatedSystem)
    return made


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("xmoe", {"tp": "2"}),
        ("tutel", {"degree": "2"}),
        ("ted", {"tp": "2", "ep": "2"}),
        ("piper", {"pp": "2", "ep": "2"}),
        ("piper", {"pp": "2", "ep": "2", "schedule": "zbv"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_losses_of_the_unmigrated_run(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    def body(context: Context) -> Any:
        still, moving = built(context, name, options), built(context, name, options)
        migrator = attach(moving, POLICY)
        losses = trained(still, 0, 4), trained(moving, 0, 4)
        weights = still.full_parameters(), moving.full_parameters()
        moved = [one.layer for one in migrator.history if one.moved is not None]
        tables = {name: layer.table.held for name, layer in moving.experts.items()}
        return by_value((losses, weights, moved, tables))

    results = loaded(run_world(WORLD, body, tmp_path, timeout_s=80))
    (still, moving), weights, _, _ = results[0]
    tables: dict[str, Any] = {}
    for _, _, moved, held in results:
        # Layers are on all ranks, or on those of a stage; all of these moved alike.
        assert set(moved) <= held.keys()
        for layer in held:
            assert tables.setdefault(layer, held[layer]) == held[layer]
    everywhere = {layer for _, _, moved, _ in results for layer in moved}
    assert everywhere == {"layers.1.routed_experts", "layers.2.routed_experts"}
    assert moving[:2] == still[:2]
    assert moving[2] == pytest.approx(still[2], rel=1e-6)
    assert moving[3] == pytest.approx(still[3], rel=1e-5)
    for name, weight in weights[0].items():
        assert (weights[1][name] - weight).norm() <= 1e-4 * weight.norm()
