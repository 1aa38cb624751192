"""Tests of the state of replicated systems: bit for bit on as many ranks, the same training on others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ciera_piper_core.systems.tutel import TutelSystem
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.expert_family import (
    WORLD,
    batch,
    build,
    difference,
    packed,
    ranks_of,
    recipe,
    train,
    unpacked,
    worst,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.replicated import ReplicatedSystem
    from ciera_piper_core.training.recipe import Recipe


def built(context: Context, given: Recipe, options: str, system: type[ReplicatedSystem] = XMoESystem) -> Any:
    return build(system, given, ranks_of(context), options)


def saved_and_loaded(old: Any, new: Any, folder: Path) -> None:
    """The state of one into the other, through files."""
    dcp.save({"system": old.state_dict()}, checkpoint_id=folder)
    state = new.state_dict()
    dcp.load({"system": state}, checkpoint_id=folder)
    new.load_state_dict(state)


@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, optimizer: Any) -> None:
    given = recipe(optimizer=optimizer, precision="bf16", routing=Routing(kind="loss_free", bias_rate=0.01))

    def body(context: Context) -> bool:
        first, second = built(context, given, "ep=2"), built(context, given, "ep=2")
        train(first, 2)
        saved_and_loaded(first, second, tmp_path / "state")
        one, other = train(first, 2, first=2), train(second, 2, first=2)
        same = all(torch.equal(weight, other.parameters[name]) for name, weight in one.parameters.items())
        return same and (one.losses, one.norms) == (other.losses, other.norms)

    assert run_world(WORLD, body, tmp_path) == [True] * WORLD


def test_another_ep_goes_on_with_the_same_training(tmp_path: Path) -> None:
    given = recipe()

    def body(context: Context) -> bytes:
        first = built(context, given, "ep=4")
        train(first, 2)
        wanted = None
        found = []
        others = ("ep=2", "ep=1", "ep=4:tp=2")
        for options in others:
            other = built(context, given, options)
            saved_and_loaded(first, other, tmp_path / options.replace(":", "_"))
            assert other.steps == 2
            found.append((other.full_parameters(), train(other, 1, first=2)))
        tutel = built(context, given, "ep=2", TutelSystem)
        saved_and_loaded(first, tutel, tmp_path / "tutel")
        found.append((tutel.full_parameters(), train(tutel, 1, first=2)))
        wanted = (first.full_parameters(), train(first, 1, first=2))
        return packed((wanted, found))

    (weights, wanted), found = unpacked(run_world(WORLD, body, tmp_path)[0])
    assert len(found) == 4
    for others, run in found:
        assert all(torch.equal(others[name], weight) for name, weight in weights.items())
        assert worst(run.losses + run.norms, wanted.losses + wanted.norms) < 1e-6
        assert difference(run.parameters, wanted.parameters) < 1e-4


def test_experts_have_a_key_each_wherever_they_are(tmp_path: Path) -> None:
    def body(context: Context) -> list[str]:
        system = built(context, recipe(), "ep=4")
        return sorted(key for key in system.state_dict()["weights"] if "layers.2.routed_experts.experts.up" in key)

    keys = run_world(WORLD, body, tmp_path)
    assert keys[1] == sorted(
        f"layers.2.routed_experts.experts.up.{expert}.{part}"
        for expert in (2, 3)
        for part in ("exp_avg", "exp_avg_sq", "master", "step")
    )
    assert len({key for rank in keys for key in rank}) == 8 * 4


class Swap:
    """Moves experts after step 1 by their whole state, so that ranks then hold others, and other numbers of them."""

    def __init__(self, system: ReplicatedSystem) -> None:
        self.system = system

    def maybe_migrate(self, step: int) -> list[str]:
        from ciera_piper_core.moe.expert_table import ExpertTable

        if step != 1:
            return []
        system = self.system
        table = ExpertTable(((7, 1, 2), (3, 0), (4, 5), (6,)))
        for name, module in system.experts.items():
            mine = table.held[system.mesh.index(*system.expert_axes)]
            stacks = [own for own in system.masters.masters if own.startswith(f"{name}.experts.")]
            for stack in stacks:
                state = {}
                for part, tensor in system.masters.state(stack).items():
                    state[part] = tensor.clone()
                    if tensor.dim():
                        whole = [None] * WORLD
                        torch.distributed.all_gather_object(whole, system.logical(stack, tensor.clone()))
                        rows = {key: row for one in whole for key, row in one.items()}  # type: ignore[attr-defined]
                        state[part] = torch.stack([rows[f"{stack}.{expert}"] for expert in mine])
                system.masters.set_state(stack, state)
            module.place(table, {stack.rpartition(".")[2]: system.masters.working[stack].detach() for stack in stacks})
        return ["moved"]


def test_experts_that_move_between_steps_change_nothing(tmp_path: Path) -> None:
    given = recipe(precision="bf16")

    def body(context: Context) -> bytes:
        still, moving = built(context, given, "ep=4"), built(context, given, "ep=4")
        moving.migration = Swap(moving)
        runs = [train(still, 4), train(moving, 4)]
        held = [module.local_experts for module in moving.experts.values()]
        return packed((runs, held, [len(moving.gradients.finish()[name]) for name in moving.gradients.finish()]))

    results = [unpacked(one) for one in run_world(WORLD, body, tmp_path)]
    still, moving = results[0][0]
    assert results[0][1] == [(7, 1, 2)] * 2
    assert moving.losses[:2] == still.losses[:2]
    # Sums over more or fewer rows at once may be rounded otherwise, in bf16.
    assert worst(moving.losses, still.losses) < 1e-3
    assert difference(moving.parameters, still.parameters) < 1e-2


def test_parameters_are_whole_on_rank_0_alone(tmp_path: Path) -> None:
    def body(context: Context) -> bytes:
        system = built(context, recipe(tied=True), "ep=2")
        system.accumulate(batch(0))
        shapes = {name: tuple(weight.shape) for name, weight in system.full_parameters().items()}
        return packed((shapes, list(system.full_gradients())))

    results = [unpacked(one) for one in run_world(WORLD, body, tmp_path)]
    shapes, gradients = results[0]
    assert shapes["layers.1.routed_experts.experts.up"] == (8, 24, 32)
    assert "output.weight" not in shapes
    assert gradients == list(shapes)
    assert results[1:] == [({}, [])] * (WORLD - 1)
