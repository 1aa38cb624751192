"""Tests of the zeropp system: weights, losses and gradients within what the formulas give; it learns all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ciera_piper_core.alltoall.placement import Placement, even_placement
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.quantisation import rounding_bound, weight_block
from ciera_piper_core.systems.zeropp import ZeroPlusPlus
from tests.ciera_piper_core.systems.fsdp_family import (
    all_ranks,
    arrays,
    batch,
    bits_differ,
    built,
    plain_gradients,
    recipe,
    trained,
    unigram_entropy,
    validation,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

TWO_NODES = even_placement(4, 2)


def weight_bounds(system: ZeroPlusPlus) -> dict[str, torch.Tensor]:
    """By parameter, how far each value may be off after a gather; whole, on every rank."""
    from ciera_piper_core.allgather.fsdp_groups import parameter_groups

    bounds = {}
    for group in parameter_groups(system.model):
        shard = torch.cat([one._sharded_param_data for one in group.fsdp.fsdp_params])
        bound = rounding_bound(shard.view(1, -1), weight_block(len(shard)), 8)[0]
        for one, part in zip(group.parameters, bound.split([each.values for each in group.parameters]), strict=True):
            whole = part.new_empty(system.ranks.world * len(part))
            torch.distributed.all_gather_single(whole, part.contiguous())
            bounds[one.name] = whole[: np.prod(one.shape)].view(one.shape)
    return bounds


def test_weights_and_losses_are_off_by_no_more_than_the_formula_says(tmp_path: Path) -> None:
    of_run = recipe()
    loss, gradients = plain_gradients(of_run, batch(0))

    def body(context: Context) -> tuple[float, float, float]:
        exact = built(FSDPSystem, of_run, all_ranks(4)).full_parameters()
        system = built(ZeroPlusPlus, of_run, all_ranks(4, TWO_NODES))
        assert isinstance(system, ZeroPlusPlus)
        bounds = weight_bounds(system)
        used = {}
        for module in (system.root, *system.model.layers.values()):
            module.unshard()
            for name, weight in system.model.named_parameters():
                if not hasattr(weight, "to_local"):
                    used[name] = weight.detach().clone()
            module.reshard()
        assert used.keys() == bounds.keys()
        # First order: how far the loss moves if every weight is off as far as it may be, and all push the same way.
        reach = squares = 0.0
        if context.site.rank == 0:
            for name, weight in used.items():
                error = (weight - exact[name]).abs()
                assert (error <= bounds[name]).all(), name
                pushes = torch.from_numpy(gradients[name]) * bounds[name]
                reach += float(pushes.abs().sum())
                squares += float(pushes.square().sum())
        return system.accumulate(batch(0)), reach, (squares / 3) ** 0.5

    results = run_world(4, body, tmp_path)
    (got, reach, deviation), *_ = results
    assert len({one[0] for one in results}) == 1
    assert 0 < abs(got - loss) < reach
    # Errors that are spread evenly and know nothing of each other push against each other, too.
    assert abs(got - loss) < 5 * deviation, (got, loss, reach, deviation)


def test_gradients_are_near_the_exact_ones(tmp_path: Path) -> None:
    of_run = recipe(microbatches=2)
    _, exact = plain_gradients(of_run, batch(0))

    def body(context: Context) -> dict[str, Any]:
        gradients = {}
        for name, options in {
            "none": {"qwz": False, "qgz": False, "hpz": False},
            "hpz": {"qwz": False, "qgz": False},
            "qgz": {"qwz": False, "hpz": False},
            "all": {},
        }.items():
            system = built(ZeroPlusPlus, of_run, all_ranks(4, TWO_NODES), **options)
            system.accumulate(batch(0))
            gradients[name] = arrays(system.full_gradients())
            system.close()
        return gradients

    gradients = run_world(4, body, tmp_path)[0]
    # The secondary copy changes where weights come from, and no bit of them.
    assert bits_differ(gradients["none"], gradients["hpz"]) == []

    def distance(name: str) -> float:
        squares = [(np.square(gradients[name][one] - exact[one]).sum(), np.square(exact[one]).sum()) for one in exact]
        return float(np.sqrt(sum(off for off, _ in squares) / sum(of for _, of in squares)))

    assert distance("none") < 1e-6
    assert 0.01 < distance("qgz") < 0.25
    assert distance("all") < 0.4
    # Vectors travel as they are.
    for name, gradient in exact.items():
        if gradient.ndim == 1:
            np.testing.assert_allclose(gradients["qgz"][name], gradient, rtol=1e-4, atol=1e-6)


def test_it_sends_less(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[float, float]:
        system = built(ZeroPlusPlus, recipe(precision="bf16", gradient_precision="bf16"), all_ranks(4, TWO_NODES))
        assert isinstance(system, ZeroPlusPlus)
        trained(system, 2)
        gathered, reduced = (
            sum(one.sent_bytes for one in each.values()) / sum(one.plain_bytes for one in each.values())
            for each in (system.gathers, system.reductions)
        )
        return gathered, reduced

    for gathered, reduced in run_world(4, body, tmp_path):
        assert gathered == pytest.approx(0.5, abs=0.02)
        # A quarter of the bits and a step for each block: DeepSpeed's blocks are short in a model this narrow.
        assert reduced < 0.4


def test_it_learns_and_every_rank_stays_with_the_others(tmp_path: Path) -> None:
    of_run = recipe(precision="bf16", learning_rate=3e-3)

    def body(context: Context) -> tuple[list[float], list[float]]:
        exact = trained(built(FSDPSystem, of_run, all_ranks(2)), 40)
        got = trained(built(ZeroPlusPlus, of_run, all_ranks(2, even_placement(2, 1))), 40)
        return exact.losses, got.losses

    exact, got = run_world(2, body, tmp_path, timeout_s=90)[0]
    assert got[0] == pytest.approx(exact[0], rel=ZeroPlusPlus.loss_tolerance)
    assert np.mean(got[-5:]) < 0.75 * got[0]
    assert np.mean(got[-5:]) == pytest.approx(np.mean(exact[-5:]), rel=0.1)


@pytest.mark.slow
def test_two_hundred_steps_end_near_the_exact_ones(tmp_path: Path) -> None:
    of_run = recipe(learning_rate=3e-3)

    def body(context: Context) -> tuple[float, float]:
        exact, rounded = (
            built(FSDPSystem, of_run, all_ranks(2)),
            built(ZeroPlusPlus, of_run, all_ranks(2, even_placement(2, 1))),
        )
        for one in (exact, rounded):
            trained(one, 200)
        return exact.evaluate(validation(8)), rounded.evaluate(validation(8))

    exact, got = run_world(2, body, tmp_path, timeout_s=150)[0]
    assert got < unigram_entropy() - 0.5
    assert got == pytest.approx(exact, rel=0.01)


def test_placements_that_do_not_fit_are_refused() -> None:
    options = {name: option.default for name, option in ZeroPlusPlus.options.items()}

    def refusal(placement: Placement, **changes: Any) -> str | None:
        class Ranks:
            pass

        Ranks.world, Ranks.placement = placement.world, placement  # type: ignore[attr-defined]
        return ZeroPlusPlus.refusal(recipe(), Ranks(), {**options, **changes})  # type: ignore[arg-type]

    assert refusal(TWO_NODES) is None
    assert "one size" in str(refusal(Placement(((0, 1, 2), (3,)))))
    assert refusal(Placement(((0, 1, 2), (3,))), qgz=False, hpz=False) is None
    assert "neighbours" in str(refusal(Placement(((0, 2), (1, 3)))))
    assert "0 or more" in str(refusal(TWO_NODES, weight_block=-1))
