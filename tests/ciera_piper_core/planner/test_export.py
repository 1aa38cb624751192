"""Exports: right numbers in each system's own words, and what a system cannot do said."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.export import FORMATS, executor_settings, export
from ciera_piper_core.planner.schedules import SCHEDULES
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.platforms import load_platform

QUESTION = Question(catalogue.load("deepseek-v3"), load_platform("frontier"), 512)
STRATEGY = Strategy(8, 32, 2, 1, 16, 32, "1f1b", "full", 1, "halo")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_executor_gets_every_layer_once(schedule: str) -> None:
    settings = json.loads(export(replace(STRATEGY, schedule=schedule), QUESTION, "executor"))
    assert [layer for layers in settings["stage_layers"] for layer in layers] == list(range(61))
    stages = [stage for held in settings["rank_stages"] for stage in held]
    assert sorted(stages) == list(range(len(settings["stage_layers"])))
    assert settings["mesh"] == {"pp": 8, "dp": 2, "ep": 32, "tp": 1}
    assert settings["global_batch"] == 32 * 64
    from torch.distributed.pipelining.schedules import get_schedule_class

    assert get_schedule_class(settings["schedule"])


def test_settings_say_all_that_the_plan_assumed() -> None:
    settings = executor_settings(STRATEGY, QUESTION)
    for name in ("alltoall", "checkpointing", "zero_stage", "microbatches", "sequences_per_gpu"):
        assert settings[name] == getattr(STRATEGY, name)
    for name in ("sequence", "optimizer", "precision", "placement", "flash"):
        assert settings[name] == getattr(QUESTION, name)


def arguments(text: str) -> dict[str, str]:
    """Megatron's arguments by name."""
    line = " ".join(part.rstrip("\\").strip() for part in text.splitlines() if not part.startswith("#"))
    return dict(re.findall(r"--([\w-]+)(?: ([^-\s]\S*))?", line))


def test_megatron_gets_its_arguments() -> None:
    found = arguments(export(STRATEGY, QUESTION, "megatron"))
    expected = {
        "tensor-model-parallel-size": "1",
        "pipeline-model-parallel-size": "8",
        "expert-model-parallel-size": "32",
        "micro-batch-size": "2",
        "global-batch-size": "2048",
        "seq-length": "4096",
        "recompute-granularity": "full",
        "use-distributed-optimizer": "",
    }
    assert found.items() >= expected.items()
    layout = found["pipeline-model-parallel-layout"].strip("'")
    assert layout.count("t") == 61
    assert layout.count("|") == 7
    assert layout.startswith("Et")
    assert layout.endswith("tL")


def test_an_interleaved_layout_has_a_part_for_each_chunk() -> None:
    found = arguments(export(replace(STRATEGY, schedule="interleaved"), QUESTION, "megatron"))
    assert found["pipeline-model-parallel-layout"].count("|") == 15


def test_deepspeed_gets_its_configuration() -> None:
    text = export(STRATEGY, QUESTION, "deepspeed")
    config = json.loads("\n".join(line for line in text.splitlines() if not line.startswith("//")))
    assert config["train_batch_size"] == 2048
    # DeepSpeed refuses a configuration in which this does not hold.
    data_ranks = STRATEGY.ep * STRATEGY.dp
    assert config["train_batch_size"] == (
        config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * data_ranks
    )
    assert config["zero_optimization"] == {"stage": 1}
    assert "ep_size=32" in text
    assert "num_stages=8" in text


def test_torchtitan_gets_fields_that_are_python() -> None:
    strategy = replace(STRATEGY, zero_stage=3, schedule="zbv")
    text = export(strategy, QUESTION, "torchtitan")
    call = ast.parse(f"Config(\n{text}\n)", mode="eval").body
    assert isinstance(call, ast.Call)
    fields = {keyword.arg: keyword.value for keyword in call.keywords}
    assert isinstance(fields["parallelism"], ast.Call)
    values: dict[str, Any] = {str(each.arg): ast.literal_eval(each.value) for each in fields["parallelism"].keywords}
    degrees = values["data_parallel_replicate_degree"] * values["data_parallel_shard_degree"]
    assert degrees * values["tensor_parallel_degree"] * values["pipeline_parallel_degree"] == 512
    assert (
        values["data_parallel_shard_degree"] * values["tensor_parallel_degree"] % values["expert_parallel_degree"] == 0
    )
    assert values["pipeline_parallel_schedule"] == "ZBVZeroBubble"
    parts = values["module_fqns_per_model_part"]
    assert len(parts) == 16
    assert parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", "lm_head"]
    assert sum(name.startswith("layers.") for part in parts for name in part) == 61


@pytest.mark.parametrize(
    ("changes", "format", "note"),
    [
        ({"schedule": "zbv"}, "megatron", "no ZBVZeroBubble"),
        ({"alltoall": "halo"}, "megatron", "no halo all-to-all"),
        ({"zero_stage": 3}, "megatron", "shards the experts"),
        ({"zero_stage": 3}, "deepspeed", "refuses ZeRO 3"),
        ({"schedule": "dualpipev"}, "deepspeed", "runs 1F1B"),
        ({"checkpointing": "selective"}, "deepspeed", "the model's own"),
        ({"zero_stage": 1}, "torchtitan", "FSDP has no ZeRO 1"),
        ({"zero_stage": 3}, "torchtitan", "shards the experts over DP"),
    ],
)
def test_what_a_system_cannot_do_is_said(changes: dict[str, Any], format: Any, note: str) -> None:
    text = export(replace(STRATEGY, **changes), QUESTION, format)
    assert any("note: " in line and note in line for line in text.splitlines())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_format_takes_every_strategy(format: Any, schedule: str) -> None:
    for tp, zero_stage, checkpointing in ((1, 0, "none"), (2, 2, "selective"), (4, 3, "full")):
        strategy = Strategy(4, 16, 8 // tp, tp, 32, 32, schedule, checkpointing, zero_stage, "flat")
        assert export(strategy, QUESTION, format).endswith("\n")
    single = Strategy(1, 1, 1, 1, 4, 4, "1f1b", "none", 0, "flat")
    assert export(single, QUESTION, format).endswith("\n")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown format 'nemo'; known: executor, megatron, deepspeed, torchtitan"):
        export(STRATEGY, QUESTION, "nemo")  # type: ignore[arg-type]
