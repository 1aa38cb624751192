"""TED: losses, gradients, norms and checkpoints are the plain model's, for every split of ranks into TP, EP and DP."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ciera_piper_core.models.architecture import MLA, Attention
from ciera_piper_core.moe.migration.trigger import Policy
from ciera_piper_core.systems.expert_migration import attach
from ciera_piper_core.systems.ted import TedSystem
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.training.health import NonFiniteError
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems import expert_family
from tests.ciera_piper_core.systems.expert_family import (
    BATCH,
    SEQUENCE,
    WORLD,
    Run,
    batch,
    build,
    difference,
    packed,
    plain_run,
    ranks_of,
    recipe,
    same_on_all_ranks,
    train,
    unpacked,
    worst,
)
from tests.ciera_piper_core.training.small_recipe import distinct_bytes
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.training.recipe import Recipe

STEPS = 3
ONE_KEY_HEAD = Attention(4, 1, 8, 8)
LATENT = Attention(4, 4, 12, 8, mla=MLA(q_lora=16, kv_lora=12, qk_nope=8, qk_rope=4, v_head=8))


def made_of(given: Recipe, attention: Attention | None = None, ffn: int = 24) -> Recipe:
    """The recipe with another attention, or experts of another width."""
    layers = tuple(
        replace(
            layer,
            mixer=attention or layer.mixer,
            experts=replace(layer.experts, ffn=ffn) if layer.experts else None,
        )
        for layer in given.architecture.layers
    )
    return replace(given, architecture=replace(given.architecture, layers=layers))


def runs(tmp_path: Path, cases: list[tuple[Recipe, str]], world: int = WORLD) -> list[Run]:
    """What rank 0 has of each case; all ranks have the same losses and norms."""

    def body(context: Context) -> list[bytes]:
        found = []
        for given, options in cases:
            built = build(TedSystem, given, ranks_of(context), options)
            run = train(built, STEPS)
            assert same_on_all_ranks([*run.losses, *run.norms])
            assert bool(run.parameters) == (context.group.rank == 0)
            built.close()
            found.append(packed(run))
        return found

    return [unpacked(one) for one in run_world(world, body, tmp_path, timeout_s=80)[0]]


def check(run: Run, wanted: Run, what: str) -> None:
    """Gradients to 1e-6 of their norm, losses to 1e-5; each parameter for itself to 1e-5."""
    assert difference(run.gradients, wanted.gradients) < 1e-6, what
    assert worst(run.norms[:1], wanted.norms[:1]) < 1e-6, what
    assert worst(run.norms, wanted.norms) < 1e-5, what
    assert worst(run.losses, wanted.losses) < 1e-5, what
    assert difference(run.parameters, wanted.parameters) < 1e-3, what
    for name, gradient in wanted.gradients.items():
        assert difference({name: run.gradients[name]}, {name: gradient}) < 1e-5, f"{what}: {name}"


def test_every_split_of_the_ranks_is_the_plain_model(tmp_path: Path) -> None:
    given = recipe(microbatches=2)
    options = ["tp=1:ep=4", "tp=2:ep=2", "tp=2:ep=1", "tp=2:ep=2:drop=false"]
    wanted = plain_run(given, STEPS)
    for run, option in zip(runs(tmp_path, [(given, option) for option in options]), options, strict=True):
        check(run, wanted, option)


@pytest.mark.slow
def test_four_ranks_to_a_matrix_copy_two_key_heads(tmp_path: Path) -> None:
    given = made_of(recipe(), ffn=32)
    (run,) = runs(tmp_path, [(given, "tp=4")])
    check(run, plain_run(given, STEPS), "tp=4")


def test_other_attentions_and_ties_are_the_plain_model(tmp_path: Path) -> None:
    given = [made_of(recipe(), ONE_KEY_HEAD), made_of(recipe(), LATENT), recipe(tied=True, checkpointing="full")]
    for run, one in zip(runs(tmp_path, [(one, "tp=2:ep=2") for one in given]), given, strict=True):
        check(run, plain_run(one, STEPS), str(one.architecture.layers[0].mixer))


def test_every_kind_of_routing_is_the_plain_model(tmp_path: Path) -> None:
    kinds = [
        Routing(kind="capacity", balance_weight=0.1),
        Routing(kind="loss_free", bias_rate=0.1),
        # Experts without tokens.
        Routing(balance_weight=0, skew=40),
    ]
    given = [recipe(routing=kind) for kind in kinds]
    for run, one in zip(runs(tmp_path, [(one, "tp=2:ep=2") for one in given]), given, strict=True):
        check(run, plain_run(one, STEPS), str(one.routing))


def test_choice_by_experts_is_the_plain_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_family, "batch", lambda step: distinct_bytes(BATCH, SEQUENCE + 1, step))
    given = recipe(routing=Routing(kind="expert_choice"))
    (run,) = runs(tmp_path, [(given, "tp=2:ep=2")])
    check(run, plain_run(given, STEPS), "expert choice")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_learns(tmp_path: Path, precision: str) -> None:
    given = recipe(precision=precision, learning_rate=3e-3)

    def body(context: Context) -> list[float]:
        built = build(TedSystem, given, ranks_of(context), "tp=2:ep=2")
        losses = []
        for step in range(8):
            losses.append(built.accumulate(batch(step)))
            assert math.isfinite(built.update())
        return losses

    results = run_world(WORLD, body, tmp_path)
    assert all(losses == results[0] for losses in results)
    assert results[0][-1] < results[0][0] - 0.5
    assert worst(results[0][:1], plain_run(given, 1).losses) < 0.02


def test_copies_stay_equal_and_parts_have_what_they_should(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        built = build(TedSystem, recipe(), ranks_of(context), "tp=2:ep=2")
        assert isinstance(built, TedSystem)
        for step in range(STEPS):
            built.accumulate(batch(step))
            built.update()
        for name, weight in built.model.named_parameters():
            if name in built.cuts:
                continue
            copies = context.group.gather_objects(weight.detach())
            assert all(torch.equal(copy, weight) for copy in copies), name
        # Two blocks or one of each expert's width, and half of the experts.
        share = 16 if context.group.rank % 2 == 0 else 8
        assert built.model.get_parameter("layers.1.routed_experts.experts.up").shape == (4, share, 32)
        assert built.model.get_parameter("layers.0.attention.weights.qkv").shape == (32, 32)
        assert built.model.get_parameter("layers.1.routed_experts.router.weight").shape == (8, 32)
        assert built.layout.tp == built.layout.ep == built.layout.data_width == 2

    run_world(WORLD, body, tmp_path)


def test_a_nan_stops_all_ranks_with_its_step_and_weight(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        built = build(TedSystem, recipe(), ranks_of(context), "tp=2:ep=2")
        assert isinstance(built, TedSystem)
        if context.group.rank == 3:
            with torch.no_grad():
                built.model.get_parameter("layers.2.routed_experts.experts.down")[0, 0, 0] = math.nan
        with pytest.raises(NonFiniteError) as caught:
            built.accumulate(batch(0))
        return str(caught.value)

    messages = run_world(WORLD, body, tmp_path)
    assert len(set(messages)) == 1
    assert messages[0].startswith("step 0")
    assert "layers.2.routed_experts.experts.down" in messages[0]


def test_experts_that_move_change_nothing(tmp_path: Path) -> None:
    given = recipe(routing=Routing(balance_weight=0, skew=1))
    wanted = plain_run(given, 4)

    def body(context: Context) -> tuple[list[float], list[tuple[int, ...]]]:
        built = build(TedSystem, given, ranks_of(context), "tp=2:ep=2")
        assert isinstance(built, TedSystem)
        attach(built, Policy(check_every=2, window=2, threshold=1, margin=0, target=1, spare_experts=2))
        run = train(built, 4)
        return run.losses + run.norms, [part for module in built.experts.values() for part in module.table.held]

    results = run_world(WORLD, body, tmp_path, timeout_s=80)
    # Parts of an expert stay together, and some experts have left their first place.
    assert all(held == results[0][1] for _, held in results)
    assert results[0][1] != [(0, 1, 2, 3), (4, 5, 6, 7)] * 2
    assert worst(results[0][0], wanted.losses + wanted.norms) < 1e-5


def test_a_checkpoint_is_resumed_with_another_cut_and_by_another_system(tmp_path: Path) -> None:
    given = recipe()
    wanted = plain_run(given, 4)

    def body(context: Context) -> list[list[float]]:
        ranks = ranks_of(context)
        first = build(TedSystem, given, ranks, "tp=2:ep=2")
        for step in range(2):
            first.accumulate(batch(step))
            first.update()
        dcp.save(first.state_dict(), checkpoint_id=tmp_path / "saved")
        first.close()
        resumed = []
        for system, options in ((TedSystem, "tp=2:ep=1"), (TedSystem, "tp=1:ep=4"), (XMoESystem, "ep=4")):
            built = build(system, given, ranks, options)
            state = built.state_dict()
            dcp.load(state, checkpoint_id=tmp_path / "saved")
            built.load_state_dict(state)
            run = train(built, 2, first=2)
            resumed.append(run.losses + run.norms)
            built.close()
        return resumed

    for resumed in run_world(WORLD, body, tmp_path, timeout_s=80)[0]:
        assert worst(resumed, wanted.losses[2:] + wanted.norms[2:]) < 1e-5


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks = ranks_of(context)
        refusals = {
            "tp=3": (recipe(), "tp=3 does not divide 4 ranks"),
            "tp=4": (recipe(), "an inner width of 24 has 3 blocks of 8, too few for 4 ranks"),
            "tp=2": (recipe(optimizer="adafactor"), "adafactor keeps means .* use adam, or tp=1"),
            "tp=2:ep=4": (recipe(), "ep=4 does not divide 2 ranks"),
            "tp=2:ep=2": (recipe(experts=5), "ep=2 does not divide the 5 experts of a layer"),
        }
        for options, (given, message) in refusals.items():
            with pytest.raises(ValueError, match=message):
                build(TedSystem, given, ranks, options)
        assert TedSystem.arrange(recipe(), 4, {"tp": 0, "ep": 0}) == {"dp": 1, "ep": 2, "tp": 2}
        # What cannot be cut, or not evenly, is not by default.
        assert TedSystem.arrange(recipe(optimizer="adafactor"), 4, {"tp": 0, "ep": 0})["tp"] == 1
        assert TedSystem.arrange(recipe(), 1, {"tp": 0, "ep": 0})["tp"] == 1

    run_world(WORLD, body, tmp_path)
