"""Piper trains as the plain model does, under every schedule, mesh, kind of routing and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.pipeline.schedules import SCHEDULES
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.pipelined_family import (
    all_ranks,
    architecture,
    built,
    check_same,
    recipe,
    reference,
    trained,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.training.recipe import Recipe

STEPS = 3


def compare(recipe: Recipe, nodes: int = 1, steps: int = STEPS, loss: float = 1e-6, **options: Any) -> None:
    """Train both, and hold them to each other."""
    ranks = all_ranks(nodes)
    expected = reference(recipe, ranks, steps)
    system = built(PiperSystem, recipe, ranks, **options)
    check_same(trained(system, steps), expected, what=str(options), loss=loss, weights=100 * loss)
    system.close()


def test_every_schedule_on_two_stages_of_two_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks, one = all_ranks(), recipe()
        expected = reference(one, ranks, STEPS)
        for schedule in SCHEDULES:
            system = built(PiperSystem, one, ranks, pp=2, ep=2, schedule=schedule)
            check_same(trained(system, STEPS), expected, what=schedule)
            assert (system.layout.pp, system.layout.ep, system.layout.dp) == (2, 2, 1)
            system.close()

    run_world(4, body, tmp_path)


@pytest.mark.parametrize(
    ("options", "microbatches"),
    [({"pp": 4}, 4), ({"pp": 1, "ep": 4}, 2), ({"pp": 1, "ep": 2}, 2), ({"pp": 2, "ep": 1}, 2), ({"pp": 2}, 4)],
)
def test_every_mesh_of_four_ranks(options: dict[str, Any], microbatches: int, tmp_path: Path) -> None:
    run_world(4, lambda context: compare(recipe(microbatches=microbatches), **options), tmp_path)


def test_experts_that_do_not_divide(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        five = recipe(architecture=architecture(experts=5))
        compare(five, pp=2, ep=2, placement="uneven")
        with pytest.raises(ValueError, match="ep=2 does not divide the 5 experts"):
            built(PiperSystem, five, all_ranks(), pp=2, ep=2)

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_tied_embeddings(schedule: str, tmp_path: Path) -> None:
    tied = recipe(architecture=architecture(tied=True))
    run_world(4, lambda context: compare(tied, pp=2, ep=2, schedule=schedule), tmp_path)


def test_hierarchical_exchange_over_two_nodes(tmp_path: Path) -> None:
    run_world(4, lambda context: compare(recipe(microbatches=2), nodes=2, pp=1, ep=4, alltoall="halo_v2"), tmp_path)


def test_ranks_that_share_experts_share_a_node_and_stages_are_apart(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        system = built(PiperSystem, recipe(), all_ranks(nodes=2), pp=2, ep=2)
        assert isinstance(system, PiperSystem)
        assert system.mesh.placement("ep").nodes == ((0, 1),)
        assert system.mesh.placement("pp").nodes == ((0,), (1,))
        system.close()

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("kind", ["capacity", "loss_free", "expert_choice"])
def test_kinds_of_routing(kind: Any, tmp_path: Path) -> None:
    routed = recipe(routing=Routing(kind=kind))
    # Text has runs of equal bytes, whose probabilities are equal too, up to rounding; where an expert's last
    # place is between two of them, another rounding gives it to the other.
    loss = 1e-4 if kind == "expert_choice" else 1e-6
    run_world(4, lambda context: compare(routed, steps=2, loss=loss, pp=2, ep=2), tmp_path)


def test_recomputed_activations_and_adafactor(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        compare(recipe(checkpointing="full"), pp=2, ep=2, schedule="zero_bubble")
        compare(recipe(optimizer="adafactor"), pp=2, ep=2)

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_stays_near_the_plain_model(precision: Any, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks, one = all_ranks(), recipe(precision=precision)
        expected = reference(one, ranks, STEPS)
        for schedule in ("1f1b", "zbv"):
            system = built(PiperSystem, one, ranks, pp=2, ep=2, schedule=schedule)
            got = trained(system, STEPS)
            assert got.losses == pytest.approx(expected.losses, rel=5e-3), schedule
            assert got.norms == pytest.approx(expected.norms, rel=5e-2), schedule
            system.close()

    run_world(4, body, tmp_path)
