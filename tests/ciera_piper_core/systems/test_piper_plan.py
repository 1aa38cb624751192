"""A plan of `bench plan --export executor` runs as it is: the command line's file becomes a training."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.planner.export import export
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.platforms import load_platform
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.piper_ciera import PiperCieraSystem
from ciera_piper_core.systems.system import Ranks, parse_options
from tests.ciera_piper_core.systems.pipelined_family import all_ranks, architecture, batch, built, recipe
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem


def exported(folder: Path, schedule: str = "interleaved", zero_stage: int = 0, **changes: Any) -> Path:
    """The file of a strategy for four ranks, with some of its values changed."""
    strategy = Strategy(
        pp=2,
        ep=2,
        dp=1,
        tp=1,
        microbatches=4,
        sequences_per_gpu=4,
        schedule=schedule,
        checkpointing="none",
        zero_stage=zero_stage,
        alltoall="halo",
    )
    question = Question(architecture(), load_platform("frontier"), 4, sequence=24, precision="bf16")
    path = folder / "plan.json"
    path.write_text(json.dumps({**json.loads(export(strategy, question, "executor").text), **changes}))
    return path


@pytest.mark.parametrize(("system", "zero_stage"), [(PiperSystem, 0), (PiperCieraSystem, 1)])
def test_a_plan_runs(system: type[TrainingSystem], zero_stage: int, tmp_path: Path) -> None:
    path = exported(tmp_path, zero_stage=zero_stage)

    def body(context: Context) -> float:
        made = built(system, recipe(precision="bf16"), all_ranks(), settings=path)
        assert isinstance(made, PiperSystem)
        assert made.plan.stages.layers == ((0,), (1,), (2,), (3,))
        assert made.passes.executor.schedule == "interleaved"
        assert (made.layout.pp, made.layout.ep, made.plan.alltoall) == (2, 2, "halo_v1")
        loss = made.accumulate(batch(0))
        made.update()
        made.close()
        return loss

    losses = set(run_world(4, body, tmp_path))
    assert len(losses) == 1
    assert math.isfinite(losses.pop())


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, {"schedule": "zbv"}, "schedule is zbv, but interleaved in"),
        ({}, {"pp": 4}, "pp is 4, but 2 in"),
        ({"zero_stage": 3}, {}, "zero_stage is 3 in the plan; this system has 0"),
        ({"global_batch": 64}, {}, "global_batch is 64 in the plan and 8 in the training"),
        ({"gpus": 8}, {}, "mesh has 4 places, but gpus is 8"),
        ({"colour": 1}, {}, "unknown key 'colour'"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    changes: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    group: Any = None
    ranks = Ranks(group, even_placement(4, 4), torch.device("cpu"))
    path = exported(tmp_path, **changes)
    texts = {"settings": str(path), **{name: str(value) for name, value in options.items()}}
    reason = PiperSystem.refusal(recipe(precision="bf16"), ranks, parse_options(PiperSystem, texts))
    assert reason is not None
    assert said in reason
    assert "plan.json" in reason


def test_an_option_that_says_what_the_plan_says_is_fine(tmp_path: Path) -> None:
    group: Any = None
    ranks = Ranks(group, even_placement(4, 4), torch.device("cpu"))
    texts = {"settings": str(exported(tmp_path)), "schedule": "interleaved", "ep": "2"}
    assert PiperSystem.refusal(recipe(precision="bf16"), ranks, parse_options(PiperSystem, texts)) is None
