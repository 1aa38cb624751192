"""Inputs at which other systems are known to fail without a word, where no module's own test has them.

Three ranks and shapes that they do not divide (DeepSpeed issue 4386, torch/ao issue 3982); an expert whose first
tokens come in the last microbatch, in mixed precision (PyTorch issue 196996).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.moe.router import Router
from ciera_piper_core.systems.ciera import CieraReuse
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.piper_ciera import PiperCieraSystem
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.systems.zeropp import ZeroPlusPlus
from ciera_piper_core.training.build import DTYPES, build_model
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.fsdp_family import (
    SEQUENCE,
    Arrays,
    all_ranks,
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
    from ciera_piper_core.systems.system import TrainingSystem

SEQUENCES = 8


def distance(left: Arrays, right: Arrays) -> float:
    """Norm of the difference, relative to ``right``."""
    assert left.keys() == right.keys()
    off = sum(float(np.square(left[name] - right[name], dtype=np.float64).sum()) for name in right)
    return float((off / sum(float(np.square(one, dtype=np.float64).sum()) for one in right.values())) ** 0.5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_three_ranks_and_shapes_that_they_do_not_divide(tmp_path: Path, precision: Any) -> None:
    of_run = recipe(global_batch=6, precision=precision, gradient_precision=precision)
    loss, gradients = plain_gradients(of_run, batch(0, 6))

    def body(context: Context) -> Any:
        first = built(FSDPSystem, of_run, all_ranks(3))
        mean = first.accumulate(batch(0, 6))
        of_first = arrays(first.full_gradients())
        runs = [trained(built(kind, of_run, all_ranks(3)), 3) for kind in (FSDPSystem, CieraReuse, ZeroPlusPlus)]
        return mean, of_first, runs

    for rank, (mean, of_first, (exact, coded, rounded)) in enumerate(run_world(3, body, tmp_path, timeout_s=90)):
        assert mean == pytest.approx(loss, rel=1e-5 if precision == "fp32" else 1e-2)
        if rank == 0:
            assert distance(of_first, gradients) < (1e-5 if precision == "fp32" else 0.05)
        assert coded.losses == exact.losses
        assert coded.norms == exact.norms
        assert bits_differ(coded.weights, exact.weights) == []
        assert rounded.losses == pytest.approx(exact.losses, rel=0.02)


def late_experts(model: torch.nn.Module, parts: Any) -> None:
    """From now on tokens of part 0 go to experts 0 and 1 alone, those of part 1 to 2 and 3; none goes to the fifth.

    Args:
        parts: from the number of a router's pass and of its tokens to their parts.
    """

    def forced(router: Any, inputs: Any, routes: Any) -> Any:
        passes[router] = passes.get(router, -1) + 1
        first = 2 * parts(passes[router], len(routes.experts))[:, None]
        return routes._replace(experts=torch.cat([first, first + 1], dim=1))

    passes: dict[Any, int] = {}
    for part in model.modules():
        if isinstance(part, Router):
            part.register_forward_hook(forced)


@pytest.mark.parametrize(
    ("kind", "options", "width"),
    [
        (FSDPSystem, {}, 2),
        (XMoESystem, {"ep": 2, "placement": "uneven"}, 2),
        (PiperSystem, {"pp": 2, "ep": 1}, 1),
        (PiperCieraSystem, {"pp": 1, "ep": 1}, 2),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_an_expert_that_is_first_used_in_the_last_microbatch(
    kind: type[TrainingSystem], options: dict[str, Any], width: int, tmp_path: Path
) -> None:
    of_run = recipe(routing=Routing(balance_weight=0), precision="bf16", gradient_precision="fp32", microbatches=2)
    # In the same precision: rounding alone moves bfloat16's gradients by up to 4 % from float32's here.
    model = build_model(of_run).to(DTYPES[of_run.precision])
    each = SEQUENCES // width
    late_experts(model, lambda number, tokens: torch.arange(tokens) // SEQUENCE % each // (each // 2))
    token_loss(model(batch(0)[:, :-1]), batch(0)[:, 1:]).backward()
    exact = arrays({name: weight.grad.float() for name, weight in model.named_parameters()})  # type: ignore[union-attr]

    def body(context: Context) -> Arrays:
        system: Any = built(kind, of_run, all_ranks(2), **options)
        late_experts(system.model, lambda number, tokens: torch.full((tokens,), number))
        system.accumulate(batch(0))
        return arrays(system.full_gradients())

    gradients = run_world(2, body, tmp_path)[0]
    assert distance(gradients, exact) < 0.01
    up = gradients["layers.1.routed_experts.experts.up"]
    assert up[2].any()
    assert not up[4].any()
