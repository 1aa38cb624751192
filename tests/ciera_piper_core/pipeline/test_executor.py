"""Every schedule gives the losses and gradients of the plain model, also with few microbatches and with recomputing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.pipeline.executor import Executor, Microbatch
from ciera_piper_core.pipeline.schedules import SCHEDULES, rank_stages
from ciera_piper_core.pipeline.stages import Stages, keep_rank, stage_module
from ciera_piper_core.ranges import recording
from tests.ciera_piper_core.pipeline.small_model import HIDDEN, VOCAB, small_transformer
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.models.transformer import Checkpointing

LAYERS, SEQUENCES, LENGTH = 4, 2, 12
CPU = torch.device("cpu")


def text(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of a step."""
    generator = torch.Generator().manual_seed(7)
    batch = torch.randint(VOCAB, (microbatches * SEQUENCES, LENGTH + 1), generator=generator)
    return batch[:, :-1], batch[:, 1:]


def plain(microbatches: int, weight: float) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and gradients of the plain model, microbatch by microbatch."""
    model = small_transformer(LAYERS)
    losses = []
    tokens, targets = text(microbatches)
    for x, y in zip(tokens.chunk(microbatches), targets.chunk(microbatches), strict=True):
        loss = token_loss(model(x), y)
        (loss * weight).backward()
        losses.append(float(loss.detach()))
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def executor(
    schedule: str, microbatches: int, checkpointing: Checkpointing = "none", **more: Any
) -> tuple[Any, Executor]:
    """This rank's part of the model and its executor."""
    group = dist.group.WORLD
    assert group is not None
    pp = dist.get_world_size(group)
    stages = Stages.evenly(LAYERS, rank_stages(schedule, pp))
    model = small_transformer(LAYERS, checkpointing)
    rank = dist.get_rank(group)
    keep_rank(model, stages, rank)
    modules = {stage: stage_module(model, stages, stage) for stage in stages.of_rank[rank]}
    shape = Microbatch(SEQUENCES, LENGTH, HIDDEN, VOCAB, torch.float32)
    return model, Executor(modules, stages, schedule, microbatches, shape, group, CPU, **more)


def check_step(schedule: str, microbatches: int, checkpointing: Checkpointing = "none", **more: Any) -> list[str]:
    """Run two steps and an evaluation between them; the regions of the second step."""
    expected, gradients = plain(microbatches, 0.5)
    model, run = executor(schedule, microbatches, checkpointing, **more)
    run.loss_weight = 0.5
    tokens, targets = text(microbatches)
    for step in range(2):
        for parameter in model.parameters():
            parameter.grad = None
        with recording() as spans:
            losses = run.step(tokens, targets)
        assert [float(loss) for loss in losses] == pytest.approx(expected if run.has_last else [], rel=1e-6)
        assert not any(loss.requires_grad for loss in losses)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            difference = (parameter.grad - gradients[name]).norm() / gradients[name].norm()
            assert difference < 1e-6, (schedule, step, name, float(difference))
        if step == 0:
            evaluated = run.evaluate(tokens, targets)
            assert [float(loss) for loss in evaluated] == pytest.approx(expected if run.has_last else [], rel=1e-6)
    return [span.name for span in spans]


def test_every_schedule_is_the_plain_model_on_two_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        for schedule in SCHEDULES:
            names = check_step(schedule, 4)
            assert "pipeline_wait" in names, schedule

    run_world(2, body, tmp_path)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_four_ranks(schedule: str, tmp_path: Path) -> None:
    run_world(4, lambda context: check_step(schedule, 4), tmp_path)


def test_fewer_microbatches_than_stages_where_the_schedule_can(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        for schedule in ("gpipe", "looped_bfs", "zbv"):
            check_step(schedule, 1)
        check_step("interleaved", 3)

    run_world(2, body, tmp_path)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_fewer_microbatches_than_stages_are_refused_where_it_cannot(schedule: str, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        with pytest.raises(ValueError, match="microbatches"):
            executor(schedule, 1)

    run_world(2, body, tmp_path)


def test_recomputed_activations(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        check_step("1f1b", 2, "full")
        for schedule in ("zero_bubble", "zbv", "dualpipev"):
            names = check_step(schedule, 4, "full", whole_backward=True)
            # Two layers a rank, four microbatches: forward, and once more in the backward pass.
            assert names.count("attention.core") == 2 * 4 * 2, schedule
            check_step(schedule, 4, "selective")

    run_world(2, body, tmp_path)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        _, run = executor("1f1b", 2)
        tokens, targets = text(3)
        with pytest.raises(ValueError, match="2 microbatches of 2 sequences"):
            run.step(tokens, targets)

    run_world(2, body, tmp_path)


def test_stages_of_another_schedule_are_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group = dist.group.WORLD
        assert group is not None
        stages = Stages.evenly(LAYERS, rank_stages("interleaved", 2))
        shape = Microbatch(SEQUENCES, LENGTH, HIDDEN, VOCAB, torch.float32)
        with pytest.raises(ValueError, match="zbv on 2 ranks needs stages"):
            Executor({}, stages, "zbv", 4, shape, group, CPU)

    run_world(2, body, tmp_path)
