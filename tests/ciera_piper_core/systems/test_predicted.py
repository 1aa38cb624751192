"""Predictions of a system's step: what they are made of, and how they go with work, ranks and messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.models.architecture import Experts
from ciera_piper_core.planner.communication import all_gather_seconds, all_reduce_seconds
from ciera_piper_core.platforms import load_platform
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.predicted import Prediction, _crowding, alone, predict
from ciera_piper_core.systems.rank_costs import ModelCosts, PartCosts, RankCosts
from ciera_piper_core.systems.system import parse_options
from tests.ciera_piper_core.systems.pipelined_family import recipe

PROFILE = Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"
PLATFORM = load_platform(str(PROFILE), "bf16")
SYSTEMS: dict[str, Any] = {"fsdp": FSDPSystem, "piper": PiperSystem, "plain": Plain}
LAYER, REST = PartCosts(1.0, 2.0, 0.5), PartCosts(0.25, 0.5, 0.25)
MODEL = ModelCosts((LAYER,) * 4, REST)
EQUAL = RankCosts(MODEL, MODEL)
"""Ranks that do nothing to each other."""


def slower(factor: float) -> RankCosts:
    """Ranks that take so many times longer together."""
    parts = [PartCosts(each.forward * factor, each.backward * factor, each.update) for each in (LAYER, REST)]
    return RankCosts(MODEL, ModelCosts((parts[0],) * 4, parts[1]))


def options(name: str, **given: str) -> dict[str, Any]:
    return parse_options(SYSTEMS[name], given)


def predicted(name: str, world: int = 2, *, costs: RankCosts = EQUAL, cores: int = 99, **given: Any) -> Prediction:
    """Of a small model; ``given``: the recipe's, or options of the system as texts."""
    texts = {key: value for key, value in given.items() if key in SYSTEMS[name].options}
    asked = recipe(**{key: value for key, value in given.items() if key not in texts})
    return predict(name, asked, options(name, **texts), even_placement(world, world), PLATFORM, costs, cores)


def seconds(found: Prediction) -> dict[str, float]:
    return {name: part.seconds for name, part in found.parts.items()}


def test_a_prediction_is_its_parts_and_says_how_each_is_known() -> None:
    for name in SYSTEMS:
        found = predicted(name)
        assert found.total == pytest.approx(sum(seconds(found).values()))
        assert all(part.seconds >= 0 and part.how and part.status for part in found.parts.values())


def test_one_rank_with_everything_is_its_passes_and_update() -> None:
    assert seconds(predicted("plain", 1)) == {"passes": 4 * (12 + 0.75), "crowding": 0, "update": 2.25}


def test_gathers_are_of_each_microbatch_and_reductions_of_each_step() -> None:
    one, four = (seconds(predicted("fsdp", microbatches=count)) for count in (1, 4))
    assert four["gathers"] == pytest.approx(4 * one["gathers"])
    assert four["reductions"] == one["reductions"] > 0
    assert four["passes"] == pytest.approx(4 * one["passes"])
    kept = seconds(predicted("fsdp", microbatches=1, reshard="false"))
    assert one["gathers"] / 2 < kept["gathers"] < one["gathers"]


def test_a_gather_takes_what_the_profile_says_of_its_bytes() -> None:
    from ciera_piper_core.training.build import empty_model

    model = empty_model(recipe(), device="meta")
    layers = [4 * sum(weight.numel() for weight in layer.parameters()) for layer in model.layers.values()]
    rest = 4 * sum(weight.numel() for weight in model.parameters()) - sum(layers)
    per_microbatch = 2 * sum(float(all_gather_seconds(PLATFORM, size, 2)) for size in layers)
    per_microbatch += float(all_gather_seconds(PLATFORM, rest, 2))
    assert seconds(predicted("fsdp"))["gathers"] == pytest.approx(4 * per_microbatch)


def test_ranks_that_all_work_are_as_slow_as_all_together() -> None:
    found = seconds(predicted("fsdp", costs=slower(1.5)))
    assert found["passes"] + found["crowding"] == pytest.approx(1.5 * 4 * 12.75)


def test_two_stages_wait_for_the_first_and_the_last_microbatch() -> None:
    found = seconds(predicted("piper", pp="2"))
    # The second stage has the rest too: four microbatches of it, and before and after them one of the first stage.
    stage, last = 2 * 3.0, 2 * 3.0 + 0.75
    assert found["passes"] == pytest.approx(4 * last)
    assert found["passes"] + found["pipeline"] == pytest.approx(4 * last + stage, rel=0.01)
    assert found["experts"] == found["reductions"] == 0
    assert found["update"] == 2 * 0.5 + 0.25


def test_copies_of_a_stage_sum_their_gradients_and_experts_travel() -> None:
    copies, shared = (seconds(predicted("piper", 4, pp="2", ep=ep)) for ep in ("1", "2"))
    assert copies["experts"] == 0 < shared["experts"]
    # Ranks that share experts have no copies of them to sum.
    assert 0 < shared["reductions"] < copies["reductions"]
    norm = sum(float(all_reduce_seconds(PLATFORM, 8, size)) for size in (4, 2, 2, 2))
    assert shared["agreement"] == pytest.approx(norm)


def test_ranks_take_turns_on_cores_and_idle_ones_leave_theirs() -> None:
    # Four ranks on two cores, twice as slow for that alone: of three at work, each has two thirds of a core.
    assert _crowding(slower(2.0), 3.0, world=4, cores=2) == pytest.approx(1.5)
    assert _crowding(slower(2.0), 2.0, world=4, cores=2) == pytest.approx(1.0)
    # Each with a core of its own: they are slow for each other's memory, from the second on.
    assert _crowding(slower(1.4), 2.0, world=2, cores=2) == pytest.approx(1.4)
    assert _crowding(slower(1.4), 1.5, world=2, cores=2) == pytest.approx(1.2)
    assert _crowding(slower(1.4), 1.0, world=2, cores=2) == 1.0
    # Both.
    assert _crowding(slower(3.0), 4.0, world=4, cores=2) == pytest.approx(3.0)
    assert _crowding(EQUAL, 1.0, world=1, cores=1) == 1.0


def test_an_update_of_a_share_takes_no_less_than_its_share() -> None:
    two, four = (seconds(predicted("fsdp", world))["update"] for world in (2, 4))
    whole = EQUAL.together.total.update
    assert whole / 2 <= two < whole
    assert whole / 4 <= four < two


def test_alone_a_rank_has_its_share_of_batch_and_experts() -> None:
    asked = recipe(global_batch=32)
    sharded = alone("fsdp", asked, options("fsdp"), 2)
    assert sharded.recipe == replace(asked, global_batch=16)
    piped = alone("piper", asked, options("piper", pp="2", ep="2", schedule="interleaved"), 4)
    assert piped.recipe.global_batch == 16
    assert {name: piped.options[name] for name in ("pp", "ep", "schedule")} == {"pp": 1, "ep": 1, "schedule": "1f1b"}
    held = [layer.experts for layer in piped.recipe.architecture.layers if layer.experts]
    whole = [layer.experts for layer in asked.architecture.layers if layer.experts]
    assert [each.experts for each in held] == [each.experts // 2 for each in whole]
    assert all(isinstance(each, Experts) and each.top_k == 2 for each in held)
    assert PiperSystem.arrange(piped.recipe, 1, piped.options) == {"pp": 1, "dp": 1, "ep": 1}
    assert alone("plain", asked, {}, 2).recipe == asked


def test_what_cannot_be_predicted_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no prediction of system 'xmoe'; there is one of plain, fsdp, piper"):
        alone("xmoe", recipe(), {}, 2)
    with pytest.raises(ValueError, match="looped_bfs is not planned"):
        predicted("piper", pp="2", schedule="looped_bfs")
    with pytest.raises(ValueError, match="nothing was measured between nodes"):
        predict("fsdp", recipe(), options("fsdp"), even_placement(2, 1), PLATFORM, EQUAL, 9)
