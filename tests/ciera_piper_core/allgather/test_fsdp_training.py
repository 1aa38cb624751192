"""500 steps of real FSDP2 training with compressed gathers: every loss and parameter as without, bit for bit.

Models that gather plain and compressed are trained side by side in one world, through all that
happens to a training: gradient accumulation, parameters frozen and thawed, resharding switched off,
a checkpoint that is loaded into the same model and into a new one, gathers that fail and are tried
again, evaluation in between.

Each run takes minutes, so by default a model has one mode in each of its parameter groups, and in fp16 every other
step is left out;
``FULL_TRAINING=1`` in the environment runs every mode alone, on every world and in every type.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.allgather.shard_coding import ShardDecoder, ShardEncoder
from ciera_piper_core.exponents.coding import CodedDataError
from tests.ciera_piper_core.allgather.fsdp_training import (
    FROZEN,
    Compressed,
    Recipe,
    Training,
    batch,
    cpu_mesh,
    differing,
    failing,
    same_bits,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from bench.suite import Context

STEPS = 500
ACCUMULATING = range(100, 140)
MICRO_BATCHES = 2
THAW = 180
KEEP_UNSHARDED = range(220, 320)
FAILED_DECODE, FAILED_ENCODE, FAILED_EVALUATION = 210, 260, 340
SAVE, LOAD, LOAD_INTO_NEW = 360, 380, 420
WAYS = {"block": ("block",) * 3, "delta": ("delta",) * 3, "auto": ("auto",) * 3, "each": ("block", "delta", "auto")}
"""By way of compressing, the modes of the parameter groups: the two layers', and what is left of the root's."""

MODES = ("block", "delta", "auto")
RUNS = [
    pytest.param(4, torch.bfloat16, ("each",), 1, id="4-bf16"),
    pytest.param(3, torch.float16, ("each",), 2, id="3-fp16"),
]
if os.environ.get("FULL_TRAINING"):
    RUNS = [
        pytest.param(world, dtype, MODES, 1, id=f"{world}-{name}")
        for world in (4, 3)
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16))
    ]


def fail_everywhere(training: Compressed, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """A step in which every rank's decoding fails in the same gather, in the middle of the backward pass."""
    with failing(ShardDecoder, "decode", at=0) as calls:
        training.forward_and_backward(batches)
        training.abandon()
    with failing(ShardDecoder, "decode", at=calls[0] - 1), pytest.raises(CodedDataError, match="on purpose"):
        training.forward_and_backward(batches)
    training.abandon()


def evaluate(training: Training, tokens: Tensor) -> Tensor:
    """Logits."""
    with torch.no_grad():
        logits: Tensor = training.model(tokens)
    # What is kept after a forward pass without a backward pass is not up to date after the next step.
    training.root.reset_iter_state()
    return logits


def fail_on_one_rank(training: Compressed, tokens: Tensor, rank: int) -> None:
    """An evaluation whose last gather fails on rank 0 alone; the others get through."""
    with failing(ShardDecoder, "decode", at=0) as calls:
        evaluate(training, tokens)
    if rank == 0:
        with failing(ShardDecoder, "decode", at=calls[0]), pytest.raises(CodedDataError, match="on purpose"):
            evaluate(training, tokens)
        training.root.reset_iter_state()
    else:
        evaluate(training, tokens)


def train(context: Context, dtype: torch.dtype, ways: Sequence[str], every: int, folder: Path) -> list[float]:
    """Train plain and compressed models side by side, one of ``every`` steps; the plain one's losses."""
    rank, mesh = context.group.rank, cpu_mesh(context.group.world)
    recipe = Recipe(dtype, frozen=FROZEN)
    plain = Training(recipe, mesh)
    others = [Compressed(recipe, mesh, WAYS[way], way) for way in ways]
    losses = []
    for step in range(0, STEPS, every):
        trainings = [plain, *others]
        for training in trainings:
            if step == THAW:
                training.train_only(())
            if step in (KEEP_UNSHARDED.start, KEEP_UNSHARDED.stop):
                training.root.set_reshard_after_forward(step == KEEP_UNSHARDED.stop)
            if step == SAVE:
                training.save(folder / training.name)
            if step == LOAD:
                training.load(folder / training.name)
        if step == LOAD_INTO_NEW:
            for other in others:
                other.remove()
            plain, others = (
                Training(Recipe(dtype), mesh),
                [Compressed(Recipe(dtype), mesh, WAYS[way], way) for way in ways],
            )
            for training in (plain, *others):
                training.load(folder / training.name)
        micro_batches = MICRO_BATCHES if step in ACCUMULATING else 1
        batches = [batch(step * MICRO_BATCHES + number, rank) for number in range(micro_batches)]
        expected = plain.step(batches)
        losses.append(sum(expected).item())
        logits = evaluate(plain, batches[0][0]) if step == FAILED_EVALUATION else None
        for other in others:
            refreshes = other.gathers("refresh")
            if step == FAILED_DECODE:
                fail_everywhere(other, batches)
            with failing(ShardEncoder, "encode", at=int(step == FAILED_ENCODE and rank == 1)):
                got = other.step(batches)
            where = f"{other.name}, step {step}"
            assert all(map(same_bits, got, expected)), f"{where}: losses {got}, not {expected}"
            assert differing(plain, other) == [], where
            if logits is not None:
                fail_on_one_rank(other, batches[0][0], rank)
                assert same_bits(evaluate(other, batches[0][0]), logits), where
            if step in (FAILED_DECODE, FAILED_ENCODE, FAILED_EVALUATION):
                assert other.gathers("refresh") > refreshes, f"{where}: nothing failed"
    for other in others:
        assert other.gathers("coded") > 2 * (STEPS - LOAD_INTO_NEW) // every, other.name
        other.remove()
    return losses


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("world", "dtype", "ways", "every"), RUNS)
def test_training_is_the_same_bit_for_bit(
    world: int, dtype: torch.dtype, ways: tuple[str, ...], every: int, tmp_path: Path
) -> None:
    losses = run_world(world, lambda context: train(context, dtype, ways, every, tmp_path), tmp_path, timeout_s=1100)
    for of_rank in losses:
        first, last = sum(of_rank[:20]) / 20, sum(of_rank[-20:]) / 20
        assert last < first - 1.5, f"the model did not learn: loss {first:.2f} at first, {last:.2f} at last"
