"""A strategy as launch settings of the executor, or as a configuration of Megatron-LM, DeepSpeed or torchtitan."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
DEEPSPEED_VERSION = "0.19"
TORCHTITAN_VERSION = "0.2.2"
"""Releases that the formats are for; torchtitan's is the last whose configuration is TOML."""

EXPERTS_SHARDED = "also shards the experts' state over DP, which this plan does not count"


@dataclass(frozen=True)
class Exported:
    """A strategy in another system's words.

    Attributes:
        text: valid in its format as it stands, ending with a newline; with comments where the format has them.
        notes: lines for people beside it, where the format has no comments.
    """

    text: str
    notes: tuple[str, ...] = ()


def export(strategy: Strategy, question: Question, format: Format) -> Exported:
    """The strategy in that format.

    What the other system cannot do is said in a comment or a note, never left out in silence.

    Raises:
        ValueError: an unknown format.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    writers: dict[Format, Callable[[Strategy, Question], Exported]] = {
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


def _executor(strategy: Strategy, question: Question) -> Exported:
    return Exported(json.dumps(executor_settings(strategy, question), indent=2) + "\n")


def _megatron(strategy: Strategy, question: Question) -> Exported:
    """Arguments of ``pretrain_gpt.py`` as an array of bash; the model's own arguments are the user's."""
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
        if strategy.dp > 1 and question.architecture.has_experts:
            notes.append(f"its distributed optimizer {EXPERTS_SHARDED}")
    elif strategy.zero_stage > 1:
        sharding = {2: "optim_grads", 3: "optim_grads_params"}[strategy.zero_stage]
        arguments.append(f"--use-megatron-fsdp --data-parallel-sharding-strategy {sharding}")
        if strategy.dp > 1 and question.architecture.has_experts:
            notes.append(f"Megatron-FSDP {EXPERTS_SHARDED}")
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


def _shell(strategy: Strategy, notes: list[str], arguments: list[str]) -> Exported:
    lines = [f"# {strategy}", f"# world size {strategy.gpus}", *(f"# note: {note}" for note in notes)]
    return Exported("\n".join([*lines, "MEGATRON_ARGUMENTS=(", *(f"  {each}" for each in arguments), ")"]) + "\n")


def _deepspeed(strategy: Strategy, question: Question) -> Exported:
    """A DeepSpeed configuration; what its Python side has to be told is in the notes, since JSON has no comments."""
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
    notes = [f"made for DeepSpeed {DEEPSPEED_VERSION}"]
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
    if strategy.zero_stage > 0 and strategy.dp > 1 and question.architecture.has_experts:
        notes.append(f"its ZeRO {EXPERTS_SHARDED}")
    if strategy.tp > 1:
        config["tensor_parallel"] = {"autotp_size": strategy.tp}
    if question.optimizer != "adam":
        notes.append(f"pass {question.optimizer} to deepspeed.initialize yourself")
    if strategy.alltoall != "flat" and strategy.ep > 1:
        notes.append(f"it has no {strategy.alltoall} all-to-all; the plan's time for it does not hold")
    lines = (str(strategy), f"world size {strategy.gpus}", *(f"note: {note}" for note in notes))
    return Exported(json.dumps(config, indent=2) + "\n", lines)


def _torchtitan(strategy: Strategy, question: Question) -> Exported:
    """Sections of the TOML job configuration of torchtitan, which ``--job.config_file`` takes."""
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    data_ranks = strategy.ep * strategy.dp
    notes = []
    # FSDP shards whatever it wraps; EP takes its ranks out of the sharded ones.
    sharded = data_ranks if strategy.zero_stage >= 2 else strategy.ep
    if strategy.zero_stage < 2 and data_ranks > 1:
        notes.append(f"FSDP has no ZeRO {strategy.zero_stage}; sharding over EP alone comes nearest")
    if strategy.dp > 1 and strategy.zero_stage >= 2 and question.architecture.has_experts:
        notes.append(f"it {EXPERTS_SHARDED}")
    if strategy.tp > 1:
        notes.append("its tensor parallelism is with sequence parallelism, which needs less memory than this plan says")
    if strategy.alltoall != "flat" and strategy.ep > 1:
        notes.append(f"it has no {strategy.alltoall} all-to-all; the plan's time for it does not hold")
    if question.placement == "uneven":
        notes.append("it needs EP to divide the experts")
    if strategy.checkpointing == "selective":
        notes.append("its selective checkpointing keeps the attention's output and every second product")
    if question.precision == "fp16":
        notes.append("it has bfloat16 and float32, no float16; bfloat16 is set")
    if question.optimizer != "adam":
        notes.append(f"it has Adam and AdamW, no {question.optimizer}; choose an optimizer and its section yourself")
    # With a pipeline, a batch goes through it cut into microbatches; without one, gradients add up over batches.
    pipelined = strategy.pp > 1
    training = {
        "local_batch_size": strategy.sequences_per_gpu if pipelined else strategy.sequences_per_microbatch,
        "global_batch_size": strategy.global_batch,
        "seq_len": question.sequence,
        "mixed_precision_param": "bfloat16",
    }
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": data_ranks // sharded,
        "data_parallel_shard_degree": sharded,
        "fsdp_reshard_after_forward": "always" if strategy.zero_stage == 3 else "never",
        "tensor_parallel_degree": strategy.tp,
        "expert_parallel_degree": strategy.ep,
        # The plan cuts each expert over TP; that needs EP there.
        "expert_tensor_parallel_degree": strategy.tp if strategy.ep > 1 else 1,
        "pipeline_parallel_degree": strategy.pp,
    }
    if pipelined:
        parallelism["pipeline_parallel_schedule"] = TORCH_CLASS[schedule]
        parallelism["pipeline_parallel_microbatch_size"] = strategy.sequences_per_microbatch
        if schedule == "dualpipev" and strategy.checkpointing != "none":
            parallelism["pipeline_parallel_expert_parallel_overlap"] = False
        parallelism["module_fqns_per_model_part"] = _module_names(strategy, question)
    checkpointing: dict[str, Any] = {"mode": strategy.checkpointing}
    if strategy.checkpointing == "selective":
        checkpointing["selective_ac_option"] = "op"
    lines = [f"# {strategy}", f"# world size {strategy.gpus}", f"# for torchtitan {TORCHTITAN_VERSION}; add [model]"]
    lines += [f"# note: {note}" for note in notes]
    sections = {"training": training, "parallelism": parallelism, "activation_checkpoint": checkpointing}
    lines += [line for name, values in sections.items() for line in ("", *_section(name, values))]
    return Exported("\n".join(lines) + "\n")


def _module_names(strategy: Strategy, question: Question) -> list[list[str]]:
    """torchtitan's names of the modules of each stage."""
    held = executor_settings(strategy, question)["stage_layers"]
    parts = [[f"layers.{layer}" for layer in layers] for layers in held]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _section(name: str, values: dict[str, Any]) -> list[str]:
    """A table of TOML: numbers, strings, truth values and lists of these are written as in JSON."""
    return [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
