"""Tests of stopping at numbers that are none: on all ranks, with one message, whichever rank has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.systems.agreed_stop import stop_at_loss, stop_at_norm
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.training.health import NonFiniteError
from tests.ciera_piper_core.systems.fsdp_family import all_ranks, batch, built, recipe, trained
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def said(call: Any) -> str:
    """The message that a call stops with."""
    try:
        call()
    except NonFiniteError as error:
        return str(error)
    return "nothing"


def test_a_weight_of_one_rank_is_named_by_all(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        system = built(FSDPSystem, recipe(), all_ranks(2))
        assert isinstance(system, FSDPSystem)
        trained(system, 2)
        if context.site.rank == 1:
            broken: Any = dict(system.model.named_parameters())["layers.1.routed_experts.experts.up"]
            with torch.no_grad():
                broken.to_local().fill_(math.nan)
        return said(lambda: system.accumulate(batch(2)))

    first, second = run_world(2, body, tmp_path)
    assert first == second
    assert "step 2: weight of layers.1.routed_experts.experts.up" in first


def test_an_output_is_named_where_all_weights_are_right(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        system = built(FSDPSystem, recipe(), all_ranks(2))
        assert isinstance(system, FSDPSystem)
        if context.site.rank == 1:
            system.model.layers["1"].attention.register_forward_hook(lambda module, inputs, output: output * math.inf)  # type: ignore[union-attr]
        return said(lambda: system.accumulate(batch(0)))

    first, second = run_world(2, body, tmp_path)
    assert first == second
    assert "output of layers.1.attention" in first


def test_of_ranks_that_infect_each_other_the_first_module_is_named(tmp_path: Path) -> None:
    """Rank 1 goes wrong in an early module; rank 0 hears of it in a later one."""

    def body(context: Context) -> str:
        model = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(4)))
        wrong = {0: 2, 1: 1}[context.site.rank]
        model[wrong].register_forward_hook(lambda module, inputs, output: output * math.nan)
        group: Any = dist.group.WORLD
        return said(lambda: stop_at_loss(math.nan, 3, model, group, lambda: model(torch.ones(1))))

    first, second = run_world(2, body, tmp_path)
    assert first == second
    assert "step 3: output of 1 is not finite" in first


def test_a_gradient_is_named_by_all(tmp_path: Path) -> None:
    def body(context: Context) -> list[str]:
        ranks: Any = dist.group.WORLD
        mine = {"a": torch.ones(2), "b": torch.full((2,), math.nan if context.site.rank == 1 else 1.0)}
        return [
            said(lambda: stop_at_norm(math.nan, 7, mine, ranks)),
            said(lambda: stop_at_norm(math.inf, 7, {"a": torch.ones(2)}, ranks)),
            said(lambda: stop_at_norm(1.0, 7, mine, ranks)),
            said(lambda: stop_at_loss(1.0, 7, torch.nn.Linear(1, 1), ranks, lambda: None)),
        ]

    first, second = run_world(2, body, tmp_path)
    assert first == second
    assert "step 7: gradient of b" in first[0]
    assert "gradient of the sum over all weights" in first[1]
    assert first[2:] == ["nothing", "nothing"]
