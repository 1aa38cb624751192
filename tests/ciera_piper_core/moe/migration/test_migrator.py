"""Migration in a system that trains: nobody can tell by the loss, and everything goes with the experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.moe.migration.costs import corrected
from ciera_piper_core.moe.migration.migrator import LayerMigration, Migrator
from ciera_piper_core.moe.migration.solver_reference import lowest_loads
from ciera_piper_core.moe.migration.trigger import Costs, Policy
from ciera_piper_core.systems.expert_migration import attach
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.moe.expert_worlds import by_value, group_of, loaded
from tests.ciera_piper_core.moe.migration.migrated_training import EXPERTS, WORLD, batch, recipe, trained
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.moe.expert_table import ExpertTable
    from ciera_piper_core.training.recipe import Recipe

EAGER = Policy(check_every=3, window=3, threshold=1.02, target=1.0, margin=0)
"""Moves at the first check whatever it costs."""

DEAR = Costs(seconds_per_copy=0.0, seconds_per_byte=1.0, seconds_per_move=1.0, bytes_per_expert=1)


def system_of(context: Context, recipe: Recipe, table: ExpertTable | None = None, **options: str) -> XMoESystem:
    """X-MoE on all ranks; its experts where ``table`` has them from the start."""

    class Placed(XMoESystem):
        def table(self, experts: int) -> ExpertTable:
            return table or super().table(experts)

    ranks = Ranks(group_of(context), even_placement(WORLD, WORLD), torch.device("cpu"))
    return Placed(recipe, ranks, parse_options(XMoESystem, options))


def whole_state(context: Context, system: XMoESystem) -> dict[str, torch.Tensor]:
    """The state of all ranks, by the keys of a checkpoint."""
    mine = {key: value.clone() for key, value in system.state_dict()["weights"].items()}
    return {key: value for one in context.group.gather_objects(mine) for key, value in one.items()}


def summary(history: list[LayerMigration]) -> list[tuple[Any, ...]]:
    """What must be the same on all ranks."""
    return [(one.layer, one.step, one.decision.verdict, one.decision.solution.after) for one in history]


class TestInvisible:
    def test_losses_of_the_unmigrated_run(self, tmp_path: Path) -> None:
        def body(context: Context) -> Any:
            still, moving = system_of(context, recipe()), system_of(context, recipe())
            migrator = attach(moving, EAGER)
            losses = trained(still, 0, 8), trained(moving, 0, 8)
            tables = [layer.table for layer in moving.experts.values()]
            weights = still.full_parameters(), moving.full_parameters()
            return by_value((losses, summary(migrator.history), [table.held for table in tables], weights))

        results = loaded(run_world(WORLD, body, tmp_path))
        (still, moving), history, tables, weights = results[0]
        assert all(one[1] == history and one[2] == tables for one in results)
        # Two layers, looked at after steps 2 and 5; at first both move.
        assert [(step, verdict) for _, step, verdict, _ in history[:2]] == [(2, "move")] * 2
        assert all(table != ((0, 1), (2, 3), (4, 5), (6, 7)) for table in tables)
        assert moving[:3] == still[:3]
        assert moving[3] == pytest.approx(still[3], rel=1e-6)
        assert moving[3:] == pytest.approx(still[3:], rel=1e-5)
        for name, weight in weights[0].items():
            assert (weights[1][name] - weight).norm() <= 1e-4 * weight.norm()

    def test_bit_for_bit_as_if_they_had_been_there(self, tmp_path: Path) -> None:
        def body(context: Context) -> Any:
            moved = system_of(context, recipe())
            migrator = attach(moved, EAGER)
            trained(moved, 0, 2)
            before = whole_state(context, moved)
            # The third step again, by one whose experts are where the others' will go.
            trained(moved, 2, 1)
            state = whole_state(context, moved)
            assert [one.moved is not None for one in migrator.history] == [True, True]
            tables = [layer.table for layer in moved.experts.values()]
            moved.migration = None
            there = system_of(context, recipe(), tables[0])
            list(there.experts.values())[1].place(
                tables[1], dict(list(moved.experts.values())[1].experts.named_parameters())
            )
            there.load_state_dict({**there.state_dict(), "weights": state, "steps": 3})
            losses = trained(moved, 3, 3), trained(there, 3, 3)
            ends = whole_state(context, moved), whole_state(context, there)
            return by_value((losses, ends, before.keys() == state.keys()))

        for (moved, there), (one, other), same_keys in loaded(run_world(WORLD, body, tmp_path)):
            assert same_keys
            assert moved == there
            assert all(torch.equal(one[key], other[key]) for key in one)


class TestWhatMoves:
    @pytest.mark.parametrize(
        ("precision", "optimizer", "options", "spare"),
        [
            ("fp32", "adam", {}, 0),
            ("bf16", "adam", {}, 1),
            ("bf16", "adafactor", {"ep": "2"}, 0),
            ("fp32", "adam", {"ep": "2"}, 2),
        ],
    )
    def test_state_is_the_same_bits_elsewhere(
        self, tmp_path: Path, precision: str, optimizer: str, options: dict[str, str], spare: int
    ) -> None:
        def body(context: Context) -> Any:
            system = system_of(context, recipe(precision=precision, optimizer=optimizer), None, **options)
            trained(system, 0, 3)
            before = whole_state(context, system)
            for layer in system.experts.values():
                layer.take_counts()
            system.accumulate(batch(3))
            # As if the step had been made: the counts are what matters.
            system.masters.clear()
            policy = Policy(check_every=1, window=1, threshold=1, target=1.0, margin=0, spare_experts=spare)
            migrator = Migrator(system.experts, system.masters, group_of(context), policy)
            system.accumulate(batch(4))
            system.masters.clear()
            moved = migrator.maybe_migrate(0)
            system.experts_moved()
            after = whole_state(context, system)
            rounded = all(
                torch.equal(weight, system.masters.masters[name].to(weight.dtype))
                for name, weight in system.masters.working.items()
            )
            sizes = [len(layer.experts.up) for layer in system.experts.values()]
            tables = [layer.table for layer in system.experts.values()]
            # It goes on learning, with gradients of the right shapes.
            losses = trained(system, 4, 2)
            return by_value((before, after, rounded, sizes, [table.held for table in tables], len(moved), losses))

        results = loaded(run_world(WORLD, body, tmp_path))
        width = int(options.get("ep", WORLD))
        for rank, (before, after, rounded, sizes, tables, moved, losses) in enumerate(results):
            assert moved >= 1
            assert before.keys() == after.keys()
            assert all(torch.equal(before[key], after[key]) for key in before)
            assert any(key.endswith((".exp_avg", ".row")) and value.any() for key, value in after.items())
            assert rounded
            assert tables == results[0][4]
            assert sizes == [len(table[rank % width]) for table in tables]
            assert losses[1] < losses[0] + 0.5
        if spare:
            assert any(len(held) != EXPERTS // width for table in results[0][4] for held in table)

    def test_gradients_follow(self, tmp_path: Path) -> None:
        def body(context: Context) -> Any:
            still, moving = system_of(context, recipe(), ep="2"), system_of(context, recipe(), ep="2")
            attach(moving, Policy(check_every=2, window=2, threshold=1, margin=0, target=1, spare_experts=2))
            trained(still, 0, 2)
            trained(moving, 0, 2)
            still.accumulate(batch(2))
            moving.accumulate(batch(2))
            held = [layer.table.held for layer in moving.experts.values()]
            gradients = still.full_gradients(), moving.full_gradients()
            return by_value((held, gradients, (still.update(), moving.update())))

        results = loaded(run_world(WORLD, body, tmp_path))
        held, (still, moving), norms = results[0]
        assert all(table != ((0, 1, 2, 3), (4, 5, 6, 7)) for table in held)
        assert norms[1] == pytest.approx(norms[0], rel=1e-6)
        for name, gradient in still.items():
            assert (moving[name] - gradient).norm() <= 2e-6 * gradient.norm(), name


class TestDecisions:
    def test_what_does_not_pay_stays(self, tmp_path: Path) -> None:
        def body(context: Context) -> Any:
            system = system_of(context, recipe())
            migrator = attach(system, Policy(check_every=2, window=2, threshold=1.02), DEAR)
            trained(system, 0, 4)
            return summary(migrator.history), [layer.table.held for layer in system.experts.values()]

        results = run_world(WORLD, body, tmp_path)
        assert all(one == results[0] for one in results)
        history, tables = results[0]
        assert {verdict for _, _, verdict, _ in history} == {"does_not_pay"}
        assert len(history) == 4
        assert set(tables) == {((0, 1), (2, 3), (4, 5), (6, 7))}

    def test_costs_are_measured_where_needed_and_agree(self, tmp_path: Path) -> None:
        def body(context: Context) -> Any:
            system = system_of(context, recipe(), ep="2")
            balanced = attach(system, Policy(check_every=1, window=1, threshold=1.9))
            trained(system, 0, 1)
            busy = attach(system, Policy(check_every=1, window=1, threshold=1.0, margin=0))
            trained(system, 1, 1)
            moved = [one.moved for one in busy.history if one.moved]
            return balanced.costs, busy.costs, moved

        results = run_world(WORLD, body, tmp_path)
        assert all(one[:2] == results[0][:2] for one in results)
        balanced, busy, moved = results[0]
        assert balanced == {}
        assert set(busy) == {"layers.1.routed_experts", "layers.2.routed_experts"}
        # Three matrices of 24 x 32, each with a master and two moments of 4 bytes.
        assert {costs.bytes_per_expert for costs in busy.values()} == {3 * 24 * 32 * 12}
        assert all(costs.seconds_per_move > 0 for costs in busy.values())
        assert {one.bytes_per_expert for one in moved} == {3 * 24 * 32 * 12}
        sent = sum(one.sent for rank in results for one in rank[2])
        assert sent == sum(one.received for rank in results for one in rank[2])
        # Each of the two copies moves what the plan says.
        assert sent == 2 * sum(one.experts * one.bytes_per_expert for one in moved)

    def test_one_slow_move_counts_half_and_no_more_than_four_times(self, tmp_path: Path) -> None:
        def body(context: Context) -> Any:
            costs = Costs(1.0, 2.0, 3.0, 4)
            slow = corrected(costs, 1.0, 1.0 if context.group.rank else 100.0, group_of(context))
            return slow, corrected(costs, 1.0, 0.5, group_of(context)), corrected(costs, 0.0, 0.25, group_of(context))

        for slow, fast, free in run_world(2, body, tmp_path):
            assert slow == Costs(1.0, 5.0, 7.5, 4)
            assert fast == Costs(1.0, 1.5, 2.25, 4)
            assert free == Costs(1.0, 2.0, 0.25, 4)

    def test_balances_zipf_routing_where_counts_allow(self, tmp_path: Path) -> None:
        def body(context: Context) -> Any:
            system = system_of(context, recipe(routing=Routing(skew=0.3)), ep="2")
            migrator = attach(system, Policy(check_every=4, window=4, threshold=1.01, target=1.0, margin=0))
            trained(system, 0, 8)
            return [one.decision.solution for one in migrator.history]

        (solutions, *_) = run_world(WORLD, body, tmp_path)
        predicted, measured = solutions[:2], solutions[2:]
        for chosen, seen in zip(predicted, measured, strict=True):
            mean = sum(chosen.counts) / 2
            possible = lowest_loads(chosen.counts, chosen.before, [4, 4])[-1] / mean
            assert chosen.load_before > 1.1
            assert chosen.load_after <= max(1.1, possible * 1.003)
            # The steps after the move, not those that it was chosen by.
            assert seen.load_before <= chosen.load_after + 0.1
        assert any(chosen.load_after <= 1.1 for chosen in predicted)
