"""A strategy as launch settings of the executor, or as arguments of Megatron-LM, DeepSpeed or torchtitan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, get_args

from ciera_piper_core.planner.schedules import TORCH_CLASS, chunks_of, stage_of_chunk
from ciera_piper_core.planner.stages import LayerKinds, stage_of_layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.planner.strategy import Question, Strategy

Format = Literal["executor", "megatron", "deepspeed", "torchtitan"]
FORMATS: tuple[Format, ...] = get_args(Format)

SETTINGS_VERSION = 1


def export(strategy: Strategy, question: Question, format: Format) -> str:
    """The strategy in that format, ending with a newline.

    What the other system cannot do is said in a comment, never left out in silence. Formats follow
    Megatron-LM, DeepSpeed 0.19 and torchtitan as of August 2026.

    Raises:
        ValueError: an unknown format.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    writers: dict[Format, Callable[[Strategy, Question], str]] = {
        "executor": _executor,
        "megatron": _megatron,
        "deepspeed": _deepspeed,
        "torchtitan": _torchtitan,
    }
    return writers[format](strategy, question)


def executor_settings(strategy: Strategy, question: Question) -> dict[str, Any]:
    """All that the pipelined executor needs, as plain values.

    ``mesh`` is from the slowest to the fastest rank index: neighbours of a tensor-parallel group are
    neighbours in rank, an expert-parallel group comes next, pipeline stages are farthest apart.
    ``stage_layers`` has for each stage the layers that it holds, counted from 0 through an encoder
    and then the decoder; ``rank_stages`` the stages of each pipeline rank.
    """
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    stages = strategy.pp * chunks_of(schedule)
    layers = len(LayerKinds.of(question.architecture, mtp=question.mtp).order)
    held = stage_of_layer(layers, stages)
    return {
        "version": SETTINGS_VERSION,
        "model": question.architecture.name,
        "gpus": strategy.gpus,
        "mesh": {"pp": strategy.pp, "dp": strategy.dp, "ep": strategy.ep, "tp": strategy.tp},
        "schedule": TORCH_CLASS[schedule],
        "stage_layers": [[int(layer) for layer in (held == stage).nonzero()[0]] for stage in range(stages)],
        "rank_stages": [list(stage_of_chunk(schedule, strategy.pp, rank)) for rank in range(strategy.pp)],
        "microbatches": strategy.microbatches,
        "sequences_per_microbatch": strategy.sequences_per_microbatch,
        "sequences_per_gpu": strategy.sequences_per_gpu,
        "global_batch": strategy.global_batch,
        "sequence": question.sequence,
        "checkpointing": strategy.checkpointing,
        "zero_stage": strategy.zero_stage,
        "alltoall": strategy.alltoall,
        "placement": question.placement,
        "optimizer": question.optimizer,
        "precision": question.precision,
        "flash": question.flash,
    }


def _executor(strategy: Strategy, question: Question) -> str:
    return json.dumps(executor_settings(strategy, question), indent=2) + "\n"


def _megatron(strategy: Strategy, question: Question) -> str:
    """Arguments of ``pretrain_gpt.py``; the model's own arguments are the user's."""
    arguments = [
        f"--tensor-model-parallel-size {strategy.tp}",
        f"--pipeline-model-parallel-size {strategy.pp}",
        f"--expert-model-parallel-size {strategy.ep}",
        f"--expert-tensor-parallel-size {strategy.tp}",
        f"--micro-batch-size {strategy.sequences_per_microbatch}",
        f"--global-batch-size {strategy.global_batch}",
        f"--seq-length {question.sequence}",
        "--moe-token-dispatcher-type alltoall",
    ]
    if question.precision in ("bf16", "fp16"):
        arguments.append(f"--{question.precision}")
    if question.flash:
        arguments.append("--use-flash-attn")
    notes = []
    if strategy.tp > 1:
        arguments.append("--sequence-parallel")
        notes.append("Megatron needs sequence parallelism for experts with TP; this plan's memory is without it")
    if strategy.pp > 1:
        arguments += _megatron_stages(strategy, question, notes)
    if strategy.checkpointing == "selective":
        arguments.append("--recompute-granularity selective --recompute-modules core_attn")
    elif strategy.checkpointing == "full":
        arguments.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if strategy.zero_stage == 1:
        arguments.append("--use-distributed-optimizer")
        notes.append("its distributed optimizer also shards the experts' state over DP, which this plan does not count")
    elif strategy.zero_stage > 1:
        sharding = {2: "optim_grads", 3: "optim_grads_params"}[strategy.zero_stage]
        arguments.append(f"--use-megatron-fsdp --data-parallel-sharding-strategy {sharding}")
        notes.append("Megatron-FSDP also shards the experts over DP, which this plan does not count")
    if strategy.alltoall != "flat" and strategy.ep > 1:
        notes.append(f"it has no {strategy.alltoall} all-to-all; the plan's time for it does not hold")
    if question.placement == "uneven":
        notes.append("it needs EP to divide the experts")
    return _shell(strategy, notes, arguments)


def _megatron_stages(strategy: Strategy, question: Question, notes: list[str]) -> list[str]:
    """The layout of the stages, letter by letter, and what Megatron makes of the schedule."""
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    if schedule not in ("1f1b", "interleaved"):
        notes.append(f"it has 1F1B and interleaved 1F1B, no {TORCH_CLASS[schedule]}; this layout is for 1F1B")
        schedule = "1f1b"
    if strategy.pp * chunks_of(schedule) < 2:
        return []
    stages = strategy.pp * chunks_of(schedule)
    kinds = LayerKinds.of(question.architecture, mtp=question.mtp)
    held = stage_of_layer(len(kinds.order), stages)
    parts = ["t" * int((held == stage).sum()) for stage in range(stages)]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * len(kinds.last) + "L"
    return [f"--pipeline-model-parallel-layout '{'|'.join(parts)}'"]


def _shell(strategy: Strategy, notes: list[str], arguments: list[str]) -> str:
    lines = [f"# {strategy}", f"# world size {strategy.gpus}", *(f"# note: {note}" for note in notes)]
    return "\n".join([*lines, " \\\n".join(arguments)]) + "\n"


def _deepspeed(strategy: Strategy, question: Question) -> str:
    """A DeepSpeed configuration, with what its Python side has to be told in comments before it."""
    config: dict[str, Any] = {
        "train_batch_size": strategy.global_batch,
        "train_micro_batch_size_per_gpu": strategy.sequences_per_microbatch,
        "gradient_accumulation_steps": strategy.microbatches,
        "zero_optimization": {"stage": strategy.zero_stage},
    }
    if question.precision in ("bf16", "fp16"):
        config[question.precision] = {"enabled": True}
    if question.optimizer == "adam":
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    notes = []
    if strategy.ep > 1:
        notes.append(f"MoE layers: deepspeed.moe.layer.MoE(..., ep_size={strategy.ep})")
    if strategy.pp > 1:
        interval = 1 if strategy.checkpointing == "full" else 0
        notes.append(
            f"model: deepspeed.pipe.PipelineModule(layers, num_stages={strategy.pp},"
            f" activation_checkpoint_interval={interval})"
        )
        if strategy.schedule != "1f1b":
            notes.append(f"its pipeline runs 1F1B, no {strategy.schedule}; the plan's time does not hold")
        if strategy.zero_stage > 1:
            config["zero_optimization"]["stage"] = 1
            notes.append(f"its pipeline refuses ZeRO {strategy.zero_stage}; stage 1 is set, and takes more memory")
    elif strategy.checkpointing == "full":
        config["activation_checkpointing"] = {"partition_activations": False}
        notes.append("wrap each layer in deepspeed.checkpointing.checkpoint")
    if strategy.checkpointing == "selective":
        notes.append("selective checkpointing is the model's own to do: compute the attention core again")
    if strategy.zero_stage == 3 and strategy.ep > 1 and strategy.pp == 1:
        notes.append("its MoE layer refuses ZeRO 3; use AutoEP (`expert_parallel`) or stage 1 or 2")
    if strategy.tp > 1:
        config["tensor_parallel"] = {"autotp_size": strategy.tp}
    if question.optimizer != "adam":
        notes.append(f"pass {question.optimizer} to deepspeed.initialize yourself")
    if strategy.alltoall != "flat" and strategy.ep > 1:
        notes.append(f"it has no {strategy.alltoall} all-to-all; the plan's time for it does not hold")
    lines = [f"// {strategy}", f"// world size {strategy.gpus}", *(f"// note: {note}" for note in notes)]
    return "\n".join(lines) + "\n" + json.dumps(config, indent=2) + "\n"


def _torchtitan(strategy: Strategy, question: Question) -> str:
    """Fields of a ``Trainer.Config`` in Python, which is how torchtitan is configured."""
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    data_ranks = strategy.ep * strategy.dp
    notes = []
    # FSDP shards whatever it wraps; EP takes its ranks out of the sharded ones.
    sharded = data_ranks if strategy.zero_stage >= 2 else strategy.ep
    if strategy.zero_stage < 2 and data_ranks > 1:
        notes.append(f"FSDP has no ZeRO {strategy.zero_stage}; sharding over EP alone comes nearest")
    if strategy.tp > 1:
        notes.append("it spreads whole experts over TP ranks too, where this plan cuts each of them")
    if strategy.dp > 1 and strategy.zero_stage >= 2:
        notes.append("it also shards the experts over DP, which this plan does not count")
    if strategy.alltoall != "flat" and strategy.ep > 1:
        notes.append(f"it has no {strategy.alltoall} all-to-all; the plan's time for it does not hold")
    if question.placement == "uneven":
        notes.append("it needs EP to divide the experts")
    tokens = strategy.sequences_per_microbatch * question.sequence
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": data_ranks // sharded,
        "data_parallel_shard_degree": sharded,
        "fsdp_reshard_after_forward": "always" if strategy.zero_stage == 3 else "never",
        "tensor_parallel_degree": strategy.tp,
        "expert_parallel_degree": strategy.ep,
        "pipeline_parallel_degree": strategy.pp,
    }
    if strategy.pp > 1:
        parallelism["pipeline_parallel_schedule"] = TORCH_CLASS[schedule]
        parallelism["num_pp_microbatches"] = strategy.microbatches
        parallelism["module_fqns_per_model_part"] = _module_names(strategy, question)
    training = {
        "num_tokens_per_microbatch_per_dp_rank": tokens,
        "num_tokens_per_train_step": strategy.global_batch * question.sequence,
        "max_context_length": question.sequence,
    }
    checkpointing = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
    lines = [f"# {strategy}", f"# world size {strategy.gpus}", *(f"# note: {note}" for note in notes)]
    lines += [_call("parallelism", "ParallelismConfig", parallelism), _call("training", "TrainingConfig", training)]
    lines.append(f"activation_checkpoint={checkpointing[strategy.checkpointing]},")
    return "\n".join(lines) + "\n"


def _module_names(strategy: Strategy, question: Question) -> list[list[str]]:
    """torchtitan's names of the modules of each stage."""
    held = executor_settings(strategy, question)["stage_layers"]
    parts = [[f"layers.{layer}" for layer in layers] for layers in held]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def _call(field: str, name: str, values: dict[str, Any]) -> str:
    inner = "".join(f"    {key}={value!r},\n" for key, value in values.items())
    return f"{field}={name}(\n{inner}),"
