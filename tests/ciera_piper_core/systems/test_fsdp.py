"""Tests of system fsdp: the plain model's losses and gradients, microbatches, clipping, state, and what stops it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint

from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.moe.router import Router
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.training.build import DTYPES, build_model
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.fsdp_family import (
    Arrays,
    all_ranks,
    architecture,
    arrays,
    batch,
    bits_differ,
    built,
    plain_gradients,
    recipe,
    trained,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.training.recipe import Recipe

ROUTINGS = [Routing(), Routing("capacity"), Routing("expert_choice"), Routing("loss_free")]


def norm(gradients: Arrays) -> float:
    """Of all together."""
    return math.sqrt(sum(float(np.square(one, dtype=np.float64).sum()) for one in gradients.values()))


def distance(left: Arrays, right: Arrays) -> float:
    """Norm of the difference, relative to ``right``."""
    assert left.keys() == right.keys()
    return norm({name: left[name] - right[name] for name in left}) / norm(right)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_losses_and_gradients_are_the_plain_models(tmp_path: Path, world: int, microbatches: int) -> None:
    of_run = recipe(microbatches=microbatches, routing=Routing(balance_weight=0.1))
    loss, gradients = plain_gradients(of_run, batch(0))

    def body(context: Context) -> tuple[float, float, Arrays]:
        system = built(FSDPSystem, of_run, all_ranks(world))
        got = system.accumulate(batch(0))
        whole = arrays(system.full_gradients())
        return got, system.update(), whole

    results = run_world(world, body, tmp_path)
    assert len({got for got, _, _ in results}) == 1
    assert results[0][0] == pytest.approx(loss, rel=1e-6)
    assert distance(results[0][2], gradients) < 1e-6
    for _, total, _ in results:
        assert total == pytest.approx(norm(gradients), rel=1e-6)


@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.kind)
def test_every_router_trains_the_same_on_one_and_two_ranks(tmp_path: Path, routing: Routing) -> None:
    of_run = recipe(routing=routing, checkpointing="full")

    def body(context: Context) -> Any:
        return trained(built(FSDPSystem, of_run, all_ranks(context.site.world)), 4)

    alone, together = (run_world(world, body, tmp_path)[0] for world in (1, 2))
    assert together.losses == pytest.approx(alone.losses, rel=1e-5)
    assert together.norms == pytest.approx(alone.norms, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_narrow_precisions_train(tmp_path: Path, precision: Any) -> None:
    of_run = recipe(precision=precision, gradient_precision=precision, microbatches=2)

    def body(context: Context) -> tuple[Any, Arrays]:
        system = built(FSDPSystem, of_run, all_ranks(2))
        training = trained(system, 6)
        system.accumulate(batch(9))
        return training, arrays(system.full_gradients())

    (narrow, gradients), _ = run_world(2, body, tmp_path)
    loss, exact = plain_gradients(of_run, batch(0))
    assert narrow.losses[0] == pytest.approx(loss, rel=1e-2)
    assert narrow.losses[-1] < narrow.losses[0]
    # Without the loss's scale, and of the masters' type.
    assert narrow.norms[0] == pytest.approx(norm(exact), rel=0.1)
    assert norm(gradients) < 100
    assert {one.dtype for one in gradients.values()} == {np.dtype("float32")}


def test_an_overflow_leaves_a_step_out_on_all_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[list[float], list[str], float]:
        system = built(FSDPSystem, recipe(precision="fp16", gradient_precision="fp16"), all_ranks(2))
        assert isinstance(system, FSDPSystem)
        before = arrays(system.full_parameters())
        system.scaler.scale = 2.0**60
        norms = [trained(system, 1).norms[0]]
        changed = bits_differ(before, arrays(system.full_parameters()))
        return norms, changed, system.scaler.scale

    for norms, changed, scale in run_world(2, body, tmp_path):
        assert not math.isfinite(norms[0])
        assert changed == []
        assert scale == 2.0**59


def test_clipping_and_tied_embeddings(tmp_path: Path) -> None:
    of_run = recipe(architecture=architecture(tied=True), clip_norm=1e-3, optimizer="adafactor")

    def body(context: Context) -> Any:
        system = built(FSDPSystem, of_run, all_ranks(context.site.world))
        assert "output.weight" not in system.full_parameters()
        return trained(system, 4)

    alone, together = (run_world(world, body, tmp_path)[0] for world in (1, 2))
    assert together.losses == pytest.approx(alone.losses, rel=1e-5)
    assert together.norms == pytest.approx(alone.norms, rel=1e-4)
    assert alone.losses[-1] < alone.losses[0]


def test_a_state_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    of_run = recipe(routing=Routing("loss_free"))
    folder = tmp_path / "state"

    def first(context: Context) -> Any:
        system = built(FSDPSystem, of_run, all_ranks(2))
        trained(system, 3)
        checkpoint.save(system.state_dict(), checkpoint_id=folder)
        return trained(system, 3, first=3)

    def second(context: Context) -> Any:
        system = built(FSDPSystem, of_run, all_ranks(context.site.world))
        state = system.state_dict()
        checkpoint.load(state, checkpoint_id=folder)
        system.load_state_dict(state)
        assert isinstance(system, FSDPSystem)
        assert system.steps == 3
        return trained(system, 3, first=3)

    through = run_world(2, first, tmp_path)[0]
    same = run_world(2, second, tmp_path)[0]
    assert same.losses == through.losses
    assert bits_differ(same.weights, through.weights) == []
    other = run_world(4, second, tmp_path)[0]
    assert other.losses == pytest.approx(through.losses, rel=1e-5)


def test_evaluating_changes_nothing(tmp_path: Path) -> None:
    of_run = recipe(routing=Routing("loss_free"), microbatches=2)

    def body(context: Context) -> tuple[Any, Any, float]:
        plain, watched = (built(FSDPSystem, of_run, all_ranks(2)) for _ in range(2))
        evaluated = watched.evaluate(batch(0))
        losses = trained(plain, 4)
        parts = []
        for step in range(4):
            watched.evaluate(batch(50))
            parts.append(trained(watched, 1, first=step))
        assert [loss for part in parts for loss in part.losses] == losses.losses
        return losses, parts[-1], evaluated

    (through, last, evaluated), _ = run_world(2, body, tmp_path)
    assert evaluated == through.losses[0]
    assert bits_differ(through.weights, last.weights) == []


def own_experts(model: torch.nn.Module, rank_of_token: Any) -> None:
    """From now on the tokens of rank r go to experts 2r and 2r + 1 alone."""

    def forced(router: Any, inputs: Any, routes: Any) -> Any:
        first = 2 * rank_of_token(len(routes.experts))[:, None]
        return routes._replace(experts=torch.cat([first, first + 1], dim=1))

    for part in model.modules():
        if isinstance(part, Router):
            part.register_forward_hook(forced)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ranks_that_use_different_experts_get_the_right_gradients(tmp_path: Path, precision: Any) -> None:
    """Each rank has no tokens for the other's experts, and the fifth has none at all (torchtitan issue 2747)."""
    of_run = recipe(routing=Routing(balance_weight=0), precision=precision, microbatches=2)
    # In the same precision: rounding alone moves bfloat16's gradients by up to 4 % from float32's here.
    model = build_model(of_run).to(DTYPES[of_run.precision])
    own_experts(model, lambda tokens: torch.arange(tokens) // (tokens // 2))
    token_loss(model(batch(0)[:, :-1]), batch(0)[:, 1:]).backward()
    exact = arrays({name: weight.grad.float() for name, weight in model.named_parameters()})  # type: ignore[union-attr]

    def body(context: Context) -> Arrays:
        system = built(FSDPSystem, of_run, all_ranks(2))
        assert isinstance(system, FSDPSystem)
        own_experts(system.model, lambda tokens: torch.full((tokens,), context.site.rank))
        system.accumulate(batch(0))
        return arrays(system.full_gradients())

    gradients = run_world(2, body, tmp_path)[0]
    assert distance(gradients, exact) < (1e-6 if precision == "fp32" else 0.01)
    assert not gradients["layers.1.routed_experts.experts.up"][4].any()


def test_a_batch_that_does_not_divide_is_refused() -> None:
    class Three:
        world = 3

    of_run: Recipe = recipe()
    assert "multiple of 3" in str(FSDPSystem.refusal(of_run, Three(), {}))  # type: ignore[arg-type]
