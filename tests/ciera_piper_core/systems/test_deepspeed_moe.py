"""Tests of the real DeepSpeed-MoE: the plain model's training for any EP, and what its gate does otherwise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.models.architecture import Architecture, Attention, Experts, Layer
from ciera_piper_core.ranges import recording
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.recipe import Recipe, Routing
from tests.ciera_piper_core.systems.deepspeed_family import runs
from tests.ciera_piper_core.systems.expert_family import (
    BATCH,
    HIDDEN,
    SEQUENCE,
    batch,
    build,
    difference,
    plain_run,
    ranks_of,
    recipe,
    worst,
)
from tests.gloo_world import run_world

from ciera_piper_core.moe.deepspeed_layer import plain_name  # isort: skip
from ciera_piper_core.systems.deepspeed_moe import DeepSpeedMoESystem  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def one_layer(top_k: int, matrices: int = 3, **changes: Any) -> Recipe:
    """A layer of 8 experts, with an auxiliary loss that matters."""
    layer = Layer(Attention(4, 2, 8, 8), Experts(8, top_k, 24, matrices))
    routing = changes.pop("routing", Routing(balance_weight=0.1))
    architecture = Architecture("one", HIDDEN, 256, (layer,))
    return Recipe(architecture, sequence=SEQUENCE, global_batch=BATCH, routing=routing, **changes)


def test_gradients_of_any_ep_are_the_plain_models(tmp_path: Path) -> None:
    """And their norm, in which each expert is once; whatever the ZeRO stage."""
    given = recipe(microbatches=2)
    cases = [(DeepSpeedMoESystem, given, options) for options in ("ep=1", "ep=2:zero=2", "ep=4")]
    wanted = plain_run(given, 2)
    for run, (_, _, options) in zip(runs(tmp_path, cases, steps=2, world=4), cases, strict=True):
        assert difference(run.gradients, wanted.gradients) < 1e-6, options
        for name, gradient in wanted.gradients.items():
            assert difference({name: run.gradients[name]}, {name: gradient}) < 1e-5, f"{options}: {name}"
        assert worst(run.norms[:1], wanted.norms[:1]) < 1e-6, options
        assert worst(run.losses, wanted.losses) < 1e-5, options
        assert difference(run.parameters, wanted.parameters) < 1e-3, options


def test_training_is_the_plain_models(tmp_path: Path) -> None:
    """20 steps in fp32 without dropping."""
    given = recipe()
    (run,) = runs(tmp_path, [(DeepSpeedMoESystem, given, "")], steps=20, world=2)
    wanted = plain_run(given, 20)
    assert worst(run.losses, wanted.losses) < 1e-5
    assert run.losses[-1] < run.losses[0] - 1


def test_any_number_of_choices_and_matrices(tmp_path: Path) -> None:
    """Its three gates; tied embeddings and recomputation besides."""
    cases = [
        (DeepSpeedMoESystem, one_layer(1), ""),
        (DeepSpeedMoESystem, one_layer(3, matrices=2), ""),
        (DeepSpeedMoESystem, recipe(tied=True, checkpointing="full"), "zero=2"),
    ]
    for run, (_, given, _) in zip(runs(tmp_path, cases, steps=2, world=2), cases, strict=True):
        wanted = plain_run(given, 2)
        assert difference(run.gradients, wanted.gradients) < 1e-6
        assert worst(run.losses, wanted.losses) < 1e-5


def test_all_tokens_to_the_same_experts(tmp_path: Path) -> None:
    """One token everywhere: two experts have all of it, the others none, and one rank's experts may have none."""
    given = one_layer(2)
    same = torch.full((BATCH, SEQUENCE + 1), 101)

    def train(system: Any) -> list[float]:
        losses = []
        for _ in range(3):
            losses.append(system.accumulate(same))
            system.update()
        return losses

    def body(context: Context) -> tuple[list[float], set[str]]:
        system = build(DeepSpeedMoESystem, given, ranks_of(context), "ep=4")
        with recording() as spans:
            losses = train(system)
        system.close()
        return losses, {span.name for span in spans}

    from ciera_piper_core.systems.plain import Plain

    group: Any = None
    wanted = train(Plain(given, Ranks(group, even_placement(1, 1), torch.device("cpu")), {}))
    for losses, regions in run_world(4, body, tmp_path):
        assert worst(losses, wanted) < 1e-5
        assert {"moe.router", "moe.dispatch", "moe.experts", "moe.combine", "attention"} <= regions


def test_capacity_drops(tmp_path: Path) -> None:
    """Its own capacity, which is not the recipe's: the loss is another, and still a loss."""
    options = ("capacity_factor=0.25:min_capacity=1", "capacity_factor=8")
    cases = [(DeepSpeedMoESystem, one_layer(2), chosen) for chosen in options]
    dropped, all_served = runs(tmp_path, cases, steps=2, world=2)
    wanted = plain_run(one_layer(2), 2)
    assert worst(all_served.losses, wanted.losses) < 1e-5
    assert worst(dropped.losses[:1], wanted.losses[:1]) > 1e-4
    assert all(math.isfinite(loss) for loss in dropped.losses)


def test_its_own_balance_loss_is_ours_where_it_can_be(tmp_path: Path) -> None:
    """Over one sequence a microbatch, and with any number of choices but two, of which it looks at the first alone."""
    cases = [
        (DeepSpeedMoESystem, one_layer(top_k, microbatches=BATCH // 2), "balance=deepspeed") for top_k in (1, 2, 3)
    ]
    got = runs(tmp_path, cases, steps=1, world=2)
    router = "layers.0.routed_experts.router.weight"
    for top_k, run in zip((1, 2, 3), got, strict=True):
        wanted = plain_run(one_layer(top_k, microbatches=BATCH // 2), 1)
        far = difference({router: run.gradients[router]}, {router: wanted.gradients[router]})
        # k * E * mean(p * share of tokens) of it is E * sum(p * share of choices) of ours for all k but 2.
        assert (far < 1e-5) == (top_k != 2), (top_k, far)


def test_bf16_begins_with_the_unrounded_weights(tmp_path: Path) -> None:
    given = recipe(precision="bf16")

    def body(context: Context) -> tuple[bool, list[float]]:
        system = build(DeepSpeedMoESystem, given, ranks_of(context), "ep=2")
        same = True
        if whole := system.full_parameters():
            first = dict(build_model(given).named_parameters())
            same = whole.keys() == first.keys() and all(torch.equal(whole[name], first[name]) for name in first)
        losses = []
        for step in range(2):
            losses.append(system.accumulate(batch(step)))
            system.update()
        system.close()
        return same, losses

    wanted = plain_run(given, 2)
    for same, losses in run_world(2, body, tmp_path):
        assert same
        assert losses == [pytest.approx(loss, rel=1e-2) for loss in wanted.losses]


def test_names_lead_back_to_the_plain_model() -> None:
    layer = "layers.3.routed_experts."
    assert plain_name("embedding.weight", 1, 4) == ("embedding.weight", None)
    assert plain_name(f"{layer}moe.deepspeed_moe.gate.wg.weight", 1, 4) == (f"{layer}router.weight", None)
    expert = f"{layer}moe.deepspeed_moe.experts.deepspeed_experts.2.down"
    assert plain_name(expert, 1, 4) == (f"{layer}experts.down", 6)


def test_refusals_say_what_to_change() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        ranks = Ranks(dist.group.WORLD, even_placement(1, 1), torch.device("cpu"))

        def why(given: Recipe, **options: str) -> str | None:
            return DeepSpeedMoESystem.refusal(given, ranks, parse_options(DeepSpeedMoESystem, options))

        assert why(recipe()) is None
        assert "ep=2 does not divide 1 ranks" in str(why(recipe(), ep="2"))
        assert "capacity_factor here" in str(why(recipe(routing=Routing("capacity"))))
        assert "use skew 0" in str(why(recipe(routing=Routing(skew=1.0))))
        assert "use adam" in str(why(recipe(optimizer="adafactor")))
        dense = Architecture("dense", HIDDEN, 256, (Layer(Attention(4, 2, 8, 8)),))
        assert "no routed experts" in str(why(Recipe(dense)))
        with pytest.raises(ValueError, match="zero is one of 1, 2"):
            parse_options(DeepSpeedMoESystem, {"zero": "0"})
    finally:
        dist.destroy_process_group()


def test_experts_that_ep_does_not_divide_are_refused(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        with pytest.raises(ValueError, match="ep=4 does not divide 6 experts") as error:
            build(DeepSpeedMoESystem, recipe(experts=6), ranks_of(context), "ep=4")
        return str(error.value)

    run_world(4, body, tmp_path)
