"""Piper stops on all ranks together at numbers that are none, and refuses by name what it cannot run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.training.health import NonFiniteError
from tests.ciera_piper_core.systems.pipelined_family import all_ranks, batch, built, recipe
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


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
        ({}, {"migrate": -1}, "migrate=-1"),
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
