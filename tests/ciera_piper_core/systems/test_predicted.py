"""Predictions of a system's step: what they are made of, and how they go with work, ranks and messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.planner.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from ciera_piper_core.platforms import load_platform
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.predicted import Prediction, _crowding, message_seconds, predict, spread_of
from ciera_piper_core.systems.rank_costs import Message, ModelCosts, PartCosts, RankCosts
from ciera_piper_core.systems.system import parse_options
from tests.ciera_piper_core.systems.pipelined_family import recipe

PROFILE = Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"
PLATFORM = load_platform(str(PROFILE), "bf16")
SYSTEMS: dict[str, Any] = {"fsdp": FSDPSystem, "piper": PiperSystem, "plain": Plain}
LAYER, REST = PartCosts(1.0, 2.0, 0.5, {"all_reduce": 3.0, "all_to_all": 8.0}), PartCosts(0.25, 0.5, 0.25)
MODEL = ModelCosts((LAYER,) * 4, REST)
EQUAL = RankCosts(MODEL, MODEL)
"""Ranks that do nothing to each other."""


def slower(factor: float) -> RankCosts:
    """Ranks that take so many times longer together."""
    parts = [PartCosts(one.forward * factor, one.backward * factor, one.update, one.messages) for one in (LAYER, REST)]
    return RankCosts(MODEL, ModelCosts((parts[0],) * 4, parts[1]))


def options(name: str, **given: str) -> dict[str, Any]:
    return parse_options(SYSTEMS[name], given)


def predicted(name: str, world: int = 2, *, costs: RankCosts = EQUAL, cores: int = 99, **given: str) -> Prediction:
    """Of a small model in four microbatches; ``given``: options of the system."""
    asked = recipe(global_batch=16)
    return predict(name, asked, options(name, **given), even_placement(world, world), PLATFORM, costs, cores)


def seconds(found: Prediction) -> dict[str, float]:
    return {name: part.seconds for name, part in found.parts.items()}


def test_a_prediction_is_its_parts_and_says_how_each_is_known() -> None:
    for name in SYSTEMS:
        found = predicted(name)
        assert found.total == pytest.approx(sum(seconds(found).values()))
        assert all(part.seconds >= 0 and part.how and part.status for part in found.parts.values())


def test_without_a_pipeline_it_is_passes_messages_and_update() -> None:
    whole = {"passes": 4 * (12 + 0.75), "crowding": 0, "all_reduce": 12, "all_to_all": 32, "update": 2.25}
    assert seconds(predicted("fsdp")) == whole
    found = seconds(predicted("fsdp", costs=slower(1.5)))
    assert found["passes"] + found["crowding"] == pytest.approx(1.5 * 4 * 12.75)


def test_two_stages_wait_for_the_first_and_the_last_microbatch() -> None:
    silent = ModelCosts((PartCosts(1.0, 2.0, 0.5),) * 4, REST)
    found = seconds(predicted("piper", pp="2", costs=RankCosts(silent, silent)))
    # The second stage has the rest too: four microbatches of it, and before and after them one of the first stage.
    stage, last = 2 * 3.0, 2 * 3.0 + 0.75
    hop = float(point_to_point_seconds(PLATFORM, 4 * 32 * 24 * 4, False))
    assert found["passes"] == pytest.approx(4 * last)
    assert found["pipeline"] == pytest.approx(stage, abs=20 * hop)
    assert found["pipeline"] > stage
    assert found["all_to_all"] == 0
    assert found["update"] == 2 * 0.5 + 0.25
    # The loss and the norm, over stages.
    assert found["all_reduce"] == pytest.approx(3 * float(all_reduce_seconds(PLATFORM, 8, 2)))


def test_stages_exchange_tokens_in_both_passes() -> None:
    found = seconds(predicted("piper", 4, pp="2", ep="2"))
    # Of a step 8 a layer, two layers a stage; one pass of a microbatch more for those that wait.
    assert found["all_to_all"] == pytest.approx(2 * 8 * 5 / 4, rel=0.01)
    assert found["all_reduce"] == pytest.approx(2 * 3, rel=0.01)


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
    found = predicted("piper", 2, pp="2", costs=slower(1.4), cores=2)
    assert 0 < found.parts["crowding"].seconds < 0.4 * (found.parts["passes"].seconds + found.parts["pipeline"].seconds)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("all_gather", all_gather_seconds),
        ("reduce_scatter", reduce_scatter_seconds),
        ("all_to_all", all_to_all_seconds),
    ],
)
def test_a_message_takes_what_the_profile_says_of_its_bytes_and_ranks(kind: str, formula: Any) -> None:
    of = message_seconds(PLATFORM, even_placement(4, 4), "halo_v1")
    for ranks in ((0, 1), (2, 3), (0, 1, 2, 3)):
        wanted = formula(PLATFORM, 1e6, len(ranks), ranks_per_node=min(len(ranks), PLATFORM.gpus_per_node))
        assert of(Message(kind, ranks, 1e6)) == pytest.approx(float(wanted))
    with pytest.raises(ValueError, match="nothing was measured between nodes"):
        message_seconds(PLATFORM, even_placement(2, 1))(Message(kind, (0, 1), 1e6))
    with pytest.raises(ValueError, match="what a gather takes"):
        of(Message("gather", (0, 1), 1e6))


def test_what_is_measured_is_a_stage_of_a_pipeline_with_all_layers() -> None:
    whole = spread_of("fsdp", recipe(), options("fsdp", reshard="false"), 4)
    assert (whole.width, whole.options) == (4, {"reshard": False})
    stage = spread_of("piper", recipe(global_batch=16), options("piper", pp="2", schedule="interleaved"), 4)
    assert stage.width == 2
    assert {name: stage.options[name] for name in ("pp", "ep", "schedule")} == {"pp": 1, "ep": 2, "schedule": "1f1b"}
    assert PiperSystem.arrange(recipe(global_batch=16), 2, stage.options) == {"pp": 1, "dp": 1, "ep": 2}


def test_what_cannot_be_predicted_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no prediction of system 'xmoe'; there is one of plain, fsdp, piper"):
        spread_of("xmoe", recipe(), {}, 2)
    with pytest.raises(ValueError, match="looped_bfs is not planned"):
        spread_of("piper", recipe(), options("piper", pp="2", schedule="looped_bfs"), 2)
