"""Piper with CIERA trains as the plain model does, and to the bit as with plain gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.pipeline.schedules import SCHEDULES
from ciera_piper_core.systems.piper_ciera import PiperCieraSystem
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
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


def made(recipe: Recipe, **options: Any) -> PiperCieraSystem:
    """The system, with the smallest blocks: shards are small."""
    system = built(PiperCieraSystem, recipe, all_ranks(), block=64, **options)
    assert isinstance(system, PiperCieraSystem)
    return system


def test_every_schedule_on_two_stages_of_two_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks, one = all_ranks(), recipe()
        expected = reference(one, ranks, STEPS)
        for schedule in SCHEDULES:
            system = made(one, pp=2, ep=2, schedule=schedule)
            check_same(trained(system, STEPS), expected, what=schedule)
            system.close()

    run_world(4, body, tmp_path)


def test_a_state_is_loaded_before_the_first_pass(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        first = made(recipe(), pp=2, ep=1)
        trained(first, 1)
        save_checkpoint(first, tmp_path / "run", 1)
        then, again = (each(batch(1)) for each in (first.accumulate, first.evaluate))
        first.close()
        other = made(recipe(), pp=2, ep=1)
        latest = latest_checkpoint(tmp_path / "run")
        assert latest is not None
        load_checkpoint(other, latest)
        assert other.accumulate(batch(1)) == then
        assert other.evaluate(batch(1)) == again
        other.close()

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("options", [{"pp": 2, "ep": 1}, {"pp": 1, "ep": 2}, {"pp": 4, "ep": 1}])
def test_copies_of_experts_are_sharded_too(options: dict[str, int], tmp_path: Path) -> None:
    def body(context: Context) -> None:
        # Five experts on two copies: one rank has more of them than the other.
        given = recipe(
            architecture=architecture(experts=6 if options["ep"] > 1 else 5), microbatches=4 // options["ep"]
        )
        expected = reference(given, all_ranks(), STEPS)
        system = made(given, **options)
        dense, experts = system.plan.mesh.data_width, system.plan.mesh.dp
        for name, weight in system.masters.masters.items():
            assert isinstance(weight, DTensor), name
            assert weight.device_mesh.size() == (experts if system.is_expert(name) else dense), name
        check_same(trained(system, STEPS), expected, what=str(options))
        assert all(isinstance(weight, DTensor) for weight in system.model.parameters())
        system.close()

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_compressed_gathers_change_no_bit(precision: Any, schedule: str, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        given = recipe(precision=precision, learning_rate=1e-4)
        results = []
        for codec in ("true", "false"):
            system = made(given, pp=2, ep=2, schedule=schedule, codec=codec, mode="block", record=1000)
            results.append(trained(system, 4))
            sent = [one.gathers for each in system.compressed.values() for one in each.statistics.values()]
            coded = sum(count for one in sent for kind, count in one.items() if kind != "plain")
            assert bool(coded) == (codec == "true"), sent
            # Once a step, and once for the evaluation.
            assert all(sum(one.values()) == 5 for one in sent), sent
            system.close()
        with_codec, without = results
        assert (with_codec.losses, with_codec.norms) == (without.losses, without.norms)
        assert with_codec.evaluated == without.evaluated
        for name, weight in with_codec.weights.items():
            assert torch.equal(weight.view(torch.int32), without.weights[name].view(torch.int32)), name
        expected = reference(given, all_ranks(), 4)
        assert with_codec.losses == pytest.approx(expected.losses, rel=5e-3)

    run_world(4, body, tmp_path)


def test_what_gains_is_found_out_while_training(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        system = made(recipe(), pp=2, ep=2, settle=1, record=2, trial=1)
        assert system.settled_after == 8
        losses = []
        for step in range(9):
            losses.append(system.accumulate(batch(step)))
            system.update()
        expected = reference(recipe(), all_ranks(), 9)
        assert losses == pytest.approx(expected.losses, rel=1e-5)
        system.close()

    run_world(4, body, tmp_path)


def test_tied_embeddings_are_refused() -> None:
    group: Any = None
    ranks = Ranks(group, even_placement(4, 4), torch.device("cpu"))
    reason = PiperCieraSystem.refusal(
        recipe(architecture=architecture(tied=True)), ranks, parse_options(PiperCieraSystem, {})
    )
    assert reason is not None
    assert "use system piper" in reason
