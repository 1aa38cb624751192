"""Exports: right numbers in each system's own words, and what a system cannot do said."""

from __future__ import annotations

import json
import subprocess
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.export import FORMATS, executor_settings, export
from ciera_piper_core.planner.schedules import SCHEDULES, TORCH_CLASS, chunks_of
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.platforms import load_platform

QUESTION = Question(catalogue.load("deepseek-v3"), load_platform("frontier"), 512)
STRATEGY = Strategy(8, 32, 2, 1, 16, 32, "1f1b", "full", 1, "halo")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_executor_gets_every_layer_once(schedule: str) -> None:
    settings = json.loads(export(replace(STRATEGY, schedule=schedule), QUESTION, "executor").text)
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
    """Megatron's arguments by name, as bash reads them."""
    script = f'{text}printf "%s\\n" "${{MEGATRON_ARGUMENTS[@]}}"'
    words = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            found[name] = ""
        else:
            found[name] = word
    return found


def test_megatron_gets_its_arguments() -> None:
    found = arguments(export(STRATEGY, QUESTION, "megatron").text)
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
    layout = found["pipeline-model-parallel-layout"]
    assert layout.count("t") == 61
    assert layout.count("|") == 7
    assert layout.startswith("Et")
    assert layout.endswith("tL")


def test_an_interleaved_layout_has_a_part_for_each_chunk() -> None:
    found = arguments(export(replace(STRATEGY, schedule="interleaved"), QUESTION, "megatron").text)
    assert found["pipeline-model-parallel-layout"].count("|") == 15


def test_deepspeed_gets_its_configuration() -> None:
    exported = export(STRATEGY, QUESTION, "deepspeed")
    config = json.loads(exported.text)
    assert config["train_batch_size"] == 2048
    # DeepSpeed refuses a configuration in which this does not hold.
    data_ranks = STRATEGY.ep * STRATEGY.dp
    assert config["train_batch_size"] == (
        config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * data_ranks
    )
    assert config["zero_optimization"] == {"stage": 1}
    notes = "\n".join(exported.notes)
    for part in ("world size 512", "DeepSpeed 0.19", "ep_size=32", "num_stages=8"):
        assert part in notes


JOB = {
    "training": {"local_batch_size", "global_batch_size", "seq_len", "mixed_precision_param"},
    "parallelism": {
        *("data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward"),
        *("tensor_parallel_degree", "expert_parallel_degree", "expert_tensor_parallel_degree"),
        *("pipeline_parallel_degree", "pipeline_parallel_schedule", "pipeline_parallel_microbatch_size"),
        *("pipeline_parallel_expert_parallel_overlap", "module_fqns_per_model_part"),
    },
    "activation_checkpoint": {"mode", "selective_ac_option"},
}
"""Fields of the job configuration of torchtitan 0.2.2 that are written."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("tp", "zero_stage", "checkpointing"), [(1, 0, "none"), (2, 2, "selective"), (4, 3, "full")])
def test_torchtitan_gets_toml_whose_degrees_make_its_meshes(
    schedule: str, tp: int, zero_stage: int, checkpointing: str
) -> None:
    strategy = Strategy(4, 16, 8 // tp, tp, 32, 64, schedule, checkpointing, zero_stage, "flat")
    text = export(strategy, QUESTION, "torchtitan").text
    assert "# for torchtitan 0.2.2" in text
    job = tomllib.loads(text)
    assert job.keys() == JOB.keys()
    assert all(job[section].keys() <= JOB[section] for section in JOB)
    degrees, training = job["parallelism"], job["training"]
    data = degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"]
    assert data * degrees["tensor_parallel_degree"] * degrees["pipeline_parallel_degree"] == strategy.gpus
    # Its mesh of the experts: what FSDP keeps of these ranks must be a whole number.
    inside = degrees["data_parallel_shard_degree"] * degrees["tensor_parallel_degree"]
    assert inside % (degrees["expert_parallel_degree"] * degrees["expert_tensor_parallel_degree"]) == 0
    assert degrees["pipeline_parallel_schedule"] == TORCH_CLASS[schedule]  # type: ignore[index]
    assert training["local_batch_size"] // degrees["pipeline_parallel_microbatch_size"] == strategy.microbatches
    assert training["global_batch_size"] == training["local_batch_size"] * data
    assert job["activation_checkpoint"]["mode"] == checkpointing
    parts = degrees["module_fqns_per_model_part"]
    assert len(parts) == 4 * chunks_of(schedule)  # type: ignore[arg-type]
    assert parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", "output"]
    assert sum(name.startswith("layers.") for part in parts for name in part) == 61


def test_torchtitan_adds_up_gradients_where_there_is_no_pipeline() -> None:
    training = tomllib.loads(
        export(Strategy(1, 8, 2, 1, 4, 8, "1f1b", "none", 2, "flat"), QUESTION, "torchtitan").text
    )["training"]
    assert (training["local_batch_size"], training["global_batch_size"]) == (2, 128)


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
        ({"zero_stage": 3}, "torchtitan", "shards the experts' state over DP"),
        ({"zero_stage": 1}, "megatron", "shards the experts' state over DP"),
        ({"zero_stage": 1}, "deepspeed", "shards the experts' state over DP"),
        ({"tp": 2}, "torchtitan", "sequence parallelism"),
    ],
)
def test_what_a_system_cannot_do_is_said(changes: dict[str, Any], format: Any, note: str) -> None:
    exported = export(replace(STRATEGY, **changes), QUESTION, format)
    assert any("note: " in line and note in line for line in (*exported.text.splitlines(), *exported.notes))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_without_replicas_of_experts_nothing_is_said_of_them(format: Any, zero_stage: int) -> None:
    exported = export(replace(STRATEGY, dp=1, zero_stage=zero_stage), QUESTION, format)
    assert "experts' state" not in exported.text + "".join(exported.notes)


def parse(format: str, text: str) -> None:
    """Fails if the format's own reader does not take the whole text."""
    assert text.endswith("\n")
    if format == "megatron":
        assert arguments(text)
    else:
        assert (tomllib if format == "torchtitan" else json).loads(text)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_format_takes_every_strategy(format: Any, schedule: str) -> None:
    for tp, zero_stage, checkpointing in ((1, 0, "none"), (2, 2, "selective"), (4, 3, "full")):
        strategy = Strategy(4, 16, 8 // tp, tp, 32, 32, schedule, checkpointing, zero_stage, "flat")
        parse(format, export(strategy, QUESTION, format).text)
    single = Strategy(1, 1, 1, 1, 4, 4, "1f1b", "none", 0, "flat")
    parse(format, export(single, QUESTION, format).text)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown format 'nemo'; known: executor, megatron, deepspeed, torchtitan"):
        export(STRATEGY, QUESTION, "nemo")  # type: ignore[arg-type]
