"""Piper trains as the plain model does, under every schedule, mesh and precision; what it cannot run it refuses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.pipeline.schedules import SCHEDULES
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.training.health import NonFiniteError
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.pipelined_family import (
    all_ranks,
    architecture,
    batch,
    built,
    check_same,
    recipe,
    reference,
    trained,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.training.recipe import Recipe

STEPS = 3


def compare(recipe: Recipe, nodes: int = 1, steps: int = STEPS, **options: Any) -> None:
    """Train both, and hold them to each other."""
    ranks = all_ranks(nodes)
    expected = reference(recipe, ranks, steps)
    system = built(PiperSystem, recipe, ranks, **options)
    check_same(trained(system, steps), expected, what=str(options))
    system.close()


def test_every_schedule_on_two_stages_of_two_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks, one = all_ranks(), recipe()
        expected = reference(one, ranks, STEPS)
        for schedule in SCHEDULES:
            system = built(PiperSystem, one, ranks, pp=2, ep=2, schedule=schedule)
            check_same(trained(system, STEPS), expected, what=schedule)
            assert (system.layout.pp, system.layout.ep, system.layout.dp) == (2, 2, 1)
            system.close()

    run_world(4, body, tmp_path)


@pytest.mark.parametrize(
    ("options", "microbatches"),
    [({"pp": 4}, 4), ({"pp": 1, "ep": 4}, 2), ({"pp": 1, "ep": 2}, 2), ({"pp": 2, "ep": 1}, 2), ({"pp": 2}, 4)],
)
def test_every_mesh_of_four_ranks(options: dict[str, Any], microbatches: int, tmp_path: Path) -> None:
    run_world(4, lambda context: compare(recipe(microbatches=microbatches), **options), tmp_path)


def test_experts_that_do_not_divide(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        five = recipe(architecture=architecture(experts=5))
        compare(five, pp=2, ep=2, placement="uneven")
        with pytest.raises(ValueError, match="ep=2 does not divide the 5 experts"):
            built(PiperSystem, five, all_ranks(), pp=2, ep=2)

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_tied_embeddings(schedule: str, tmp_path: Path) -> None:
    tied = recipe(architecture=architecture(tied=True))
    run_world(4, lambda context: compare(tied, pp=2, ep=2, schedule=schedule), tmp_path)


def test_hierarchical_exchange_over_two_nodes(tmp_path: Path) -> None:
    run_world(4, lambda context: compare(recipe(microbatches=2), nodes=2, pp=1, ep=4, alltoall="halo_v2"), tmp_path)


@pytest.mark.parametrize("kind", ["capacity", "loss_free", "expert_choice"])
def test_kinds_of_routing(kind: Any, tmp_path: Path) -> None:
    routed = recipe(routing=Routing(kind=kind))
    run_world(4, lambda context: compare(routed, pp=2, ep=2), tmp_path)


def test_recomputed_activations_and_adafactor(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        compare(recipe(checkpointing="full"), pp=2, ep=2, schedule="zero_bubble")
        compare(recipe(optimizer="adafactor"), pp=2, ep=2)

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_stays_near_the_plain_model(precision: Any, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks, one = all_ranks(), recipe(precision=precision)
        expected = reference(one, ranks, STEPS)
        for schedule in ("1f1b", "zbv"):
            system = built(PiperSystem, one, ranks, pp=2, ep=2, schedule=schedule)
            got = trained(system, STEPS)
            assert got.losses == pytest.approx(expected.losses, rel=5e-3), schedule
            assert got.norms == pytest.approx(expected.norms, rel=5e-2), schedule
            system.close()

    run_world(4, body, tmp_path)


def test_a_step_whose_gradients_overflow_is_left_out_on_all_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[float, float]:
        system = built(PiperSystem, recipe(precision="fp16"), all_ranks(), pp=2, ep=2)
        assert isinstance(system, PiperSystem)
        system.scaler.scale = 2.0**40
        before = {name: master.detach().clone() for name, master in system.masters.masters.items()}
        system.accumulate(batch(0))
        norm = system.update()
        assert all(torch.equal(before[name], master) for name, master in system.masters.masters.items())
        scale = system.scaler.scale
        system.close()
        return norm, scale

    results = run_world(4, body, tmp_path)
    assert len({scale for _, scale in results}) == 1
    assert results[0][1] == 2.0**39
    assert not any(math.isfinite(norm) for norm, _ in results)


@pytest.mark.parametrize("layer", [0, 3])
def test_a_weight_that_is_no_number_stops_all_ranks_with_its_name(layer: int, tmp_path: Path) -> None:
    def body(context: Context) -> str:
        system = built(PiperSystem, recipe(), all_ranks(), pp=2, ep=2)
        assert isinstance(system, PiperSystem)
        system.accumulate(batch(0))
        system.update()
        name = f"layers.{layer}.attention_norm.weight"
        if name in system.masters.masters:
            with torch.no_grad():
                system.masters.masters[name][0] = math.nan
        with pytest.raises(NonFiniteError) as caught:
            system.accumulate(batch(1))
        return str(caught.value)

    messages = set(run_world(4, body, tmp_path))
    assert len(messages) == 1
    assert f"step 1: weight of layers.{layer}.attention_norm.weight" in messages.pop()


def test_activations_that_overflow_are_found_in_the_earliest_stage(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        system = built(PiperSystem, recipe(), all_ranks(), pp=2, ep=2)
        assert isinstance(system, PiperSystem)
        for name in ("layers.1.shared_experts.down", "layers.1.shared_experts.up"):
            if name in system.masters.masters:
                with torch.no_grad():
                    system.masters.masters[name].fill_(1e38)
        with pytest.raises(NonFiniteError) as caught:
            system.accumulate(batch(0))
        return str(caught.value)

    messages = set(run_world(4, body, tmp_path))
    assert len(messages) == 1
    assert "step 0: output of layers.1" in messages.pop()


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"microbatches": 1}, {"pp": 2}, "1f1b needs at least 2 microbatches"),
        ({}, {"pp": 3}, "pp=3 does not divide 4"),
        ({}, {"pp": 2, "ep": 4}, "ep=4 does not divide 2"),
        ({}, {"pp": 4, "schedule": "zbv"}, "8 stages"),
        ({"microbatches": 3}, {"pp": 2}, "does not make 3 microbatches"),
        ({}, {"settings": "/nowhere/plan.json"}, "plan.json"),
    ],
)
def test_what_cannot_run_is_refused(changes: dict[str, Any], options: dict[str, Any], said: str) -> None:
    ranks: Any = absent_ranks(4)
    given = parse_options(PiperSystem, {name: str(value) for name, value in options.items()})
    reason = PiperSystem.refusal(recipe(**changes), ranks, given)
    assert reason is not None
    assert said in reason


def absent_ranks(world: int) -> Any:
    """Ranks that are not there: a refusal asks for their number alone."""
    group: Any = None
    return Ranks(group, even_placement(world, world), torch.device("cpu"))
