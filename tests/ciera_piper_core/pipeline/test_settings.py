"""What a plan exports is read as it is; what does not fit the training or itself is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.pipeline.mesh import MeshShape
from ciera_piper_core.pipeline.settings import ExecutorSettings
from ciera_piper_core.planner.export import export
from ciera_piper_core.planner.schedules import SCHEDULES
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.platforms import load_platform
from ciera_piper_core.training.recipe import Recipe
from tests.ciera_piper_core.pipeline.small_model import small_architecture

if TYPE_CHECKING:
    from pathlib import Path

    from ciera_piper_core.models.architecture import Architecture

PLAN: dict[str, Any] = {
    "version": 1,
    "model": "small",
    "gpus": 4,
    "mesh": {"pp": 2, "dp": 1, "ep": 2, "tp": 1},
    "schedule": "1F1B",
    "stage_layers": [[0, 1], [2, 3]],
    "rank_stages": [[0], [1]],
    "microbatches": 4,
    "sequences_per_microbatch": 1,
    "sequences_per_gpu": 2,
    "global_batch": 8,
    "sequence": 128,
    "checkpointing": "none",
    "zero_stage": 0,
    "alltoall": "halo",
    "placement": "even",
    "optimizer": "adam",
    "precision": "fp32",
    "flash": True,
}
RECIPE = Recipe(small_architecture(4), microbatches=4)


def read(folder: Path, **changes: Any) -> ExecutorSettings:
    """The plan with some of its values changed; None takes a key out."""
    values = {name: value for name, value in {**PLAN, **changes}.items() if value is not None}
    path = folder / "plan.json"
    path.write_text(json.dumps(values))
    return ExecutorSettings.read(path)


def test_a_plan_is_read(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert settings.shape == MeshShape(2, 1, 2)
    assert settings.schedule_name == "1f1b"
    assert settings.algorithm == "halo_v1"
    assert settings.stages.layers == ((0, 1), (2, 3))
    assert settings.misfit(RECIPE, 4, (0,)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version is 2"),
        ({"flash": None}, "'flash' is missing"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"microbatches": "4"}, "microbatches is '4'"),
        ({"gpus": True}, "gpus is True"),
        ({"mesh": {"pp": 2, "dp": 1, "ep": 2}}, "mesh needs"),
        ({"mesh": {"pp": 2, "dp": 1, "ep": 1, "tp": 2}}, "tp is 2"),
        ({"mesh": {"pp": 2, "dp": 2, "ep": 2, "tp": 1}}, "mesh has 8 places, but gpus is 4"),
        ({"schedule": "2F2B"}, "unknown schedule '2F2B'"),
        ({"rank_stages": [[1], [0]]}, "rank_stages is"),
        ({"stage_layers": [[0, 1], [3]]}, "once and in their order"),
        ({"stage_layers": [[0, 1], 2]}, "stage_layers is"),
        ({"microbatches": 1}, "1f1b needs at least 2 microbatches"),
        ({"alltoall": "magic"}, "alltoall is 'magic'"),
        ({"placement": "odd"}, "placement is 'odd'"),
    ],
)
def test_a_plan_that_is_none_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        read(tmp_path, **changes)
    assert "plan.json" in str(caught.value)


def test_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("mesh: 2")
    with pytest.raises(ValueError, match="no JSON"):
        ExecutorSettings.read(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        ExecutorSettings.read(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"global_batch": 16}, "global_batch is 8 in the plan and 16"),
        ({"microbatches": 2}, "microbatches is 4"),
        ({"sequence": 64}, "sequence is 128"),
        ({"precision": "bf16"}, "precision is fp32"),
        ({"optimizer": "adafactor"}, "optimizer is adam"),
        ({"checkpointing": "full"}, "checkpointing is none"),
        ({"architecture": small_architecture(6)}, "layers is 4"),
        ({"architecture": replace(small_architecture(4), name="other")}, "model is small"),
    ],
)
def test_another_training_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in str(read(tmp_path).misfit(replace(RECIPE, **changes), 4, (0,)))


def test_another_world_stage_or_placement_is_refused(tmp_path: Path) -> None:
    assert "gpus is 4 in the plan and 8" in str(read(tmp_path).misfit(RECIPE, 8, (0,)))
    assert "zero_stage is 0" in str(read(tmp_path).misfit(RECIPE, 4, (2, 3)))
    uneven = read(tmp_path, gpus=6, mesh={"pp": 2, "dp": 1, "ep": 3, "tp": 1})
    assert "ep=3 does not divide [4] experts" in str(uneven.misfit(RECIPE, 6, (0,)))
    assert replace(uneven, placement="uneven").misfit(RECIPE, 6, (0,)) is None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_the_planner_exports_is_read(schedule: str, tmp_path: Path) -> None:
    architecture: Architecture = small_architecture(8)
    strategy = Strategy(
        pp=2,
        ep=2,
        dp=2,
        tp=1,
        microbatches=4,
        sequences_per_gpu=4,
        schedule=schedule,
        checkpointing="none",
        zero_stage=0,
        alltoall="halo",
    )
    question = Question(architecture, load_platform("frontier"), 8, sequence=128, precision="bf16")
    path = tmp_path / "plan.json"
    path.write_text(export(strategy, question, "executor").text)
    settings = ExecutorSettings.read(path)
    recipe = Recipe(architecture, global_batch=strategy.global_batch, microbatches=4, precision="bf16")
    assert settings.schedule_name == schedule
    assert settings.misfit(recipe, 8, (0,)) is None
