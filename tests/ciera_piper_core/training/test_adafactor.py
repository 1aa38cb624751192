"""Tests of Adafactor: torch's on a matrix and a vector, expert by expert on stacks, the same on shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor

from ciera_piper_core.training.adafactor import Adafactor
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

LR, DECAY = 0.02, 0.1
STEPS = 4


def start(*shape: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(len(shape))
    weight = torch.randn(shape, generator=generator)
    # Large at times, so that updates are clipped.
    return weight, [torch.randn(shape, generator=generator) * 10**step for step in range(-2, STEPS - 2)]


def stepped(
    optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter, gradients: list[torch.Tensor]
) -> torch.Tensor:
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def ours(weight: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    parameter = torch.nn.Parameter(weight.clone())
    return stepped(Adafactor([parameter], LR, DECAY), parameter, gradients)


def torchs(weight: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    parameter = torch.nn.Parameter(weight.clone())
    return stepped(torch.optim.Adafactor([parameter], lr=LR, weight_decay=DECAY), parameter, gradients)


@pytest.mark.parametrize("shape", [(6, 9), (7,)])
def test_on_a_matrix_and_a_vector_it_is_torchs(shape: tuple[int, ...]) -> None:
    weight, gradients = start(*shape)
    torch.testing.assert_close(ours(weight, gradients), torchs(weight, gradients), rtol=1e-5, atol=1e-6)


def test_an_expert_of_a_stack_is_stepped_as_if_it_were_alone() -> None:
    weight, gradients = start(3, 6, 4)
    gradients = [gradient * torch.tensor([1.0, 100.0, 0.0]).view(3, 1, 1) for gradient in gradients]
    mine = ours(weight, gradients)
    for expert in range(3):
        expected = torchs(weight[expert], [gradient[expert] for gradient in gradients])
        torch.testing.assert_close(mine[expert], expected, rtol=1e-5, atol=1e-6)
    parts = [ours(weight[part], [g[part] for g in gradients]) for part in (slice(0, 2), slice(2, 3))]
    assert torch.equal(torch.cat(parts), mine), "which experts lie together changes bits"


def test_shards_step_as_the_whole(tmp_path: Path) -> None:
    cases = {(5, 3): (0, 1), (6,): (0,), (3, 4, 6): (0, 1, 2)}

    def body(context: Context) -> list[tuple[str, float]]:
        mesh = DeviceMesh("cpu", torch.arange(2))
        errors = []
        for shape, dimensions in cases.items():
            weight, gradients = start(*shape)
            expected = ours(weight, gradients)
            for placement in (Replicate(), *map(Shard, dimensions)):
                spread = torch.nn.Parameter(distribute_tensor(weight.clone(), mesh, [placement]))
                optimizer = Adafactor([spread], LR, DECAY)
                for gradient in gradients:
                    spread.grad = distribute_tensor(gradient.clone(), mesh, [placement])
                    optimizer.step()
                assert isinstance(spread, DTensor)
                error = (spread.full_tensor() - expected).abs().max().item()
                errors.append((f"{shape} {placement}", error))
                for part, value in optimizer.state[spread].items():
                    assert part == "step" or isinstance(value, DTensor)
        return errors

    for errors in run_world(2, body, tmp_path):
        assert max(error for _, error in errors) < 1e-5, errors


def test_a_parameter_without_gradient_stays_and_a_closure_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Adafactor([parameter], LR)
    optimizer.step()
    assert torch.equal(parameter, torch.ones(2, 2))
    assert optimizer.state[parameter]["step"] == 0
    with pytest.raises(ValueError, match="Adafactor takes no closure"):
        optimizer.step(lambda: 0.0)
