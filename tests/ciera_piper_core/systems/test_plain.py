"""Tests of the plain system: against torch step by step, microbatches, precisions, learning, resuming, stopping."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.moe.balance import balance_loss
from ciera_piper_core.moe.router import Router
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.training.batches import Batches
from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.health import NonFiniteError
from ciera_piper_core.training.recipe import ROUTERS, Routing
from tests.ciera_piper_core.training.small_recipe import distinct_bytes, one_rank, small_recipe, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ciera_piper_core.training.recipe import Recipe


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(recipe: Recipe, steps: int, batch: Callable[[int], torch.Tensor] | None = None) -> tuple[Plain, list[float]]:
    system, batch = Plain(recipe, one_rank(), {}), batch or Batches(text(), recipe).batch
    losses = []
    for step in range(steps):
        losses.append(system.accumulate(batch(step)))
        system.update()
    return system, losses


def test_it_is_what_torch_does_with_the_auxiliary_loss_added_to_the_loss() -> None:
    recipe = small_recipe(clip_norm=0.5, weight_decay=0.1, routing=Routing(balance_weight=0.1))
    system, batches = Plain(recipe, one_rank(), {}), Batches(text(), recipe)
    model = build_model(replace(recipe, routing=Routing(balance_weight=0)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.1)
    routes = []
    for part in model.modules():
        if isinstance(part, Router):
            part.register_forward_hook(lambda module, inputs, output: routes.append(output))
    for step in range(5):
        batch = batches.batch(step)
        loss = token_loss(model(batch[:, :-1]), batch[:, 1:])
        (route,) = routes
        auxiliary = balance_loss(route.probabilities.view(8, 32, 8), route.experts.view(8, 32, 2))
        routes.clear()
        optimizer.zero_grad()
        (loss + 0.1 * auxiliary).backward()
        assert system.accumulate(batch) == pytest.approx(loss.item(), rel=1e-6)
        for name, gradient in system.full_gradients().items():
            torch.testing.assert_close(gradient, model.get_parameter(name).grad, rtol=1e-3, atol=1e-6)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert norm > 0.5
        assert system.update() == pytest.approx(norm.item(), rel=1e-5)
        optimizer.step()
        for name, weight in system.full_parameters().items():
            torch.testing.assert_close(weight, model.get_parameter(name).detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ROUTERS)
def test_microbatches_change_nothing(kind: str) -> None:
    recipe = small_recipe(routing=Routing(kind, balance_weight=0.1, capacity_factor=0.8))  # type: ignore[arg-type]
    split = replace(recipe, microbatches=4)

    def batch(step: int) -> torch.Tensor:
        return distinct_bytes(recipe.global_batch, recipe.sequence + 1, step)

    gradients = []
    for one in (recipe, split):
        system = Plain(one, one_rank(), {})
        system.accumulate(batch(0))
        gradients.append(system.full_gradients())
    for name, gradient in gradients[0].items():
        assert (gradients[1][name] - gradient).norm() <= 2e-6 * gradient.norm() + 1e-9, name
    whole, losses = train(recipe, 4, batch)
    parts, same = train(split, 4, batch)
    # Adam makes the first steps of the smallest gradients as large as all others, rounding errors among them.
    assert same == pytest.approx(losses, rel=3e-5)
    for name, buffer in whole.model.named_buffers():
        assert torch.equal(buffer, dict(parts.model.named_buffers())[name]), name


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("kind", ROUTERS)
def test_recomputing_changes_no_bit(kind: str, checkpointing: str) -> None:
    recipe = small_recipe(routing=Routing(kind, balance_weight=0.1, capacity_factor=0.8))  # type: ignore[arg-type]
    kept, losses = train(recipe, 3)
    again, same = train(replace(recipe, checkpointing=checkpointing), 3)  # type: ignore[arg-type]
    assert same == losses
    for name, weight in kept.full_parameters().items():
        assert torch.equal(weight, again.full_parameters()[name]), name
    for name, buffer in kept.model.named_buffers():
        assert torch.equal(buffer, dict(again.model.named_buffers())[name]), name


@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precisions_stay_near_single_precision(precision: str, optimizer: str) -> None:
    recipe = small_recipe(optimizer=optimizer, learning_rate=3e-3 if optimizer == "adam" else 3e-2)
    _, losses = train(recipe, 30)
    _, rounded = train(replace(recipe, precision=precision), 30)  # type: ignore[arg-type]
    assert losses[-1] < losses[0] - 1.5
    assert rounded == pytest.approx(losses, abs=0.15)


def test_a_step_that_overflows_is_left_out_and_the_scale_falls() -> None:
    recipe = small_recipe(precision="fp16", routing=Routing("loss_free"))
    system, batches = Plain(recipe, one_rank(), {}), Batches(text(), recipe)
    before = system.full_parameters()
    system.scaler.scale = 2.0**40
    assert math.isfinite(system.accumulate(batches.batch(0)))
    assert not math.isfinite(system.update())
    assert system.scaler.scale == 2.0**39
    for name, weight in system.full_parameters().items():
        assert torch.equal(weight, before[name]), name
    assert all(torch.count_nonzero(buffer) == 0 for buffer in system.model.buffers()), "biases did not move"
    system.scaler.scale = 2.0**10
    system.accumulate(batches.batch(1))
    assert math.isfinite(system.update())


def test_gradients_are_shown_without_the_losss_scale() -> None:
    recipe = small_recipe(precision="fp16")
    batch = Batches(text(), recipe).batch(0)
    gradients = []
    for scale in (2.0**8, 2.0**12):
        system = Plain(recipe, one_rank(), {})
        system.scaler.scale = scale
        system.accumulate(batch)
        gradients.append(system.full_gradients())
    for name, gradient in gradients[0].items():
        assert (gradients[1][name] - gradient).norm() <= 0.02 * gradient.norm() + 1e-6, name


@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_a_resumed_run_goes_on_with_the_same_bits(optimizer: str) -> None:
    recipe = small_recipe(precision="fp16", optimizer=optimizer, routing=Routing("loss_free"))
    batches = Batches(text(), recipe)
    system, _ = train(recipe, 3)
    resumed = Plain(replace(recipe, seed=recipe.seed), one_rank(), {})
    state = system.state_dict()
    state = {**state, **{part: {name: v.clone() for name, v in state[part].items()} for part in ("weights", "buffers")}}
    resumed.load_state_dict(state)
    assert resumed.step == 3
    for step in range(3, 6):
        assert resumed.accumulate(batches.batch(step)) == system.accumulate(batches.batch(step))
        assert resumed.update() == system.update()


def test_evaluation_is_the_loss_and_teaches_nothing() -> None:
    recipe = small_recipe(microbatches=2)
    system, _ = train(recipe, 2)
    before, batch = system.full_parameters(), Batches(text(), recipe).validation(0)
    expected = token_loss(system.model(batch[:, :-1]), batch[:, 1:]).item()
    assert system.evaluate(batch) == pytest.approx(expected, rel=1e-6)
    assert all(weight.grad is None for weight in system.model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in system.full_parameters().items())


def test_a_run_that_breaks_stops_with_its_step_and_layer() -> None:
    recipe = small_recipe()
    system, batches = train(recipe, 2)[0], Batches(text(), recipe)
    with torch.no_grad():
        system.model.layers["1"].routed_experts.experts.down.fill_(1e38)
    with pytest.raises(NonFiniteError, match=r"step 2: output of layers\.1.* is not finite") as raised:
        system.accumulate(batches.batch(2))
    assert raised.value.step == 2
    with pytest.raises(ValueError, match="step 2: token 300"):
        system.accumulate(torch.full((8, 33), 300))


def test_what_does_not_come_out_whole_is_refused() -> None:
    recipe = small_recipe(microbatches=3)
    assert "does not make 3 microbatches" in str(Plain.refusal(recipe, one_rank(), {}))
    with pytest.raises(ValueError, match="does not make 3 microbatches"):
        Plain(recipe, one_rank(), {})


@pytest.mark.parametrize("kind", ["top_k", "loss_free"])
def test_it_learns_more_than_how_often_bytes_are_there(kind: str) -> None:
    recipe = small_recipe(sequence=64, global_batch=16, learning_rate=1e-2, routing=Routing(kind))  # type: ignore[arg-type]
    system, _ = train(recipe, 200)
    batches = Batches(text(), recipe)
    loss = sum(system.evaluate(batches.validation(index)) for index in range(8)) / 8
    assert loss < text().unigram_entropy() - 0.5
