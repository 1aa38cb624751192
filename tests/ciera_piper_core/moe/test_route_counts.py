"""Counts of chosen experts: of every step, over ranks, whatever is computed twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.moe.route_counts import RouteCounts
from ciera_piper_core.moe.router import Router
from ciera_piper_core.systems import load_system
from ciera_piper_core.systems.system import parse_options
from ciera_piper_core.training.batches import Batches
from tests.ciera_piper_core.systems.fsdp_family import all_ranks
from tests.ciera_piper_core.training.small_recipe import one_rank, small_recipe, text
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import Ranks

STEPS = 2


def alone(value: Any) -> list[Any]:
    return [value]


def counted(name: str, ranks: Ranks, gather: Any, **settings: Any) -> list[list[float]]:
    recipe = small_recipe(**settings)
    name, *options = name.split(":")
    kind = load_system(name)
    system = kind(recipe, ranks, parse_options(kind, dict(option.split("=") for option in options)))
    assert system.model is not None
    counts = RouteCounts(system.model, recipe.architecture)
    batches = Batches(text(), recipe)
    for step in range(STEPS):
        system.accumulate(batches.batch(step))
        # What learns nothing counts nothing.
        system.evaluate(batches.batch(step))
        system.update()
        counts.end_step()
    found = counts.shared(gather)
    assert counts.shared(gather) == found
    counts.close()
    system.close()
    return found


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_shares_are_of_what_the_routers_chose(checkpointing: str) -> None:
    recipe = small_recipe(checkpointing=checkpointing)
    system = load_system("plain")(recipe, one_rank(), {})
    assert system.model is not None
    (router,) = (module for module in system.model.modules() if isinstance(module, Router))
    router.count()
    counts = RouteCounts(system.model, recipe.architecture)
    system.accumulate(Batches(text(), recipe).batch(0))
    counts.end_step()
    taken = router.take_counts()
    assert int(taken.sum()) == recipe.tokens_per_step * router.top_k
    assert counts.shared(alone) == [(taken / taken.sum(dtype=torch.float64)).tolist()]
    counts.close()
    system.accumulate(Batches(text(), recipe).batch(1))
    counts.end_step()
    assert counts.shared(alone)[1] == [0.0] * router.experts


def test_every_way_to_spread_a_model_counts_alike(tmp_path: Path) -> None:
    names = ("fsdp", "xmoe:tp=2", "ted:tp=2", "piper:pp=2:ep=2", "tutel")

    def body(context: Context) -> None:
        gather = context.group.gather_objects
        right = counted("plain", one_rank(), alone, microbatches=2)
        for name in names:
            assert counted(name, all_ranks(4), gather, microbatches=2) == right, name
        # It has DeepSpeed's own gates.
        assert counted("deepspeed-moe", all_ranks(4), gather, microbatches=2) == []

    run_world(4, body, tmp_path, timeout_s=120)
