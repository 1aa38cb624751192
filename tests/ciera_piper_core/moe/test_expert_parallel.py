"""Tests for expert parallelism: outputs and gradients are the plain layer's, whoever holds the experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.moe.expert_parallel import ExpertParallel, spread_experts
from ciera_piper_core.moe.expert_table import ExpertTable, contiguous_table
from tests.ciera_piper_core.moe.expert_worlds import (
    EXPERTS,
    HIDDEN,
    by_value,
    dispatcher,
    group_of,
    loaded,
    plain_layer,
    relative,
    subgroups,
    target_of,
    tokens_of,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.models.feed_forward import RoutedExperts

WORLD = 4
TOLERANCE = 1e-6


def plain_results(layer: RoutedExperts, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and gradients of the tokens, by rank; weights' gradients of all ranks' losses stay in the layer."""
    outputs, gradients = [], []
    for rank, x in enumerate(inputs):
        x = x.clone().requires_grad_()
        y = layer(x.flatten(0, 1)).view_as(x)
        (y * target_of(rank, y)).sum().backward()
        assert x.grad is not None
        outputs.append(y.detach())
        gradients.append(x.grad)
    return outputs, gradients


def check_against_plain(
    tmp_path: Path,
    make: Callable[[Context, RoutedExperts], ExpertParallel],
    inputs: list[torch.Tensor],
    plain: RoutedExperts,
    change: Callable[[RoutedExperts], None] = lambda layer: None,
    copies: int = 1,
) -> None:
    """Run ``make``'s layer on every rank, and hold everything to the plain layer."""
    change(plain)

    def body(context: Context) -> bytes:
        layer = plain_layer(len(plain.experts.up), 3 if plain.experts.gate is not None else 2, plain.router.top_k)
        change(layer)
        spread = make(context, layer)
        rank = context.group.rank
        x = inputs[rank].clone().requires_grad_()
        y = spread(x)
        (y * target_of(rank, y)).sum().backward()
        dist.all_reduce(spread.router.weight.grad)
        experts = {name: weight.grad for name, weight in spread.experts.named_parameters()}
        return by_value((y.detach(), x.grad, spread.router.weight.grad, experts, spread.local_experts, spread.counts))

    results = loaded(run_world(len(inputs), body, tmp_path))
    outputs, gradients = plain_results(plain, inputs)
    got: dict[str, dict[int, torch.Tensor]] = {}
    counts = torch.zeros(len(plain.experts.up), dtype=torch.int64)
    for rank, (y, of_x, of_router, experts, held, counted) in enumerate(results):
        if len(y.flatten()):
            assert relative(y, outputs[rank]) < TOLERANCE
            assert relative(of_x, gradients[rank]) < TOLERANCE
        assert relative(of_router, plain.router.weight.grad) < TOLERANCE
        for name, gradient in experts.items():
            for slot, expert in enumerate(held):
                parts = got.setdefault(name, {})
                parts[expert] = parts.get(expert, 0) + gradient[slot]
        counts += counted
    for name, parts in got.items():
        whole = torch.stack([parts[expert] for expert in range(len(parts))])
        assert relative(whole, plain.experts.get_parameter(name).grad) < TOLERANCE, name
    chosen = torch.cat([plain.router(x.flatten(0, 1)).experts.flatten() for x in inputs])
    assert counts.tolist() == torch.bincount(chosen, minlength=len(counts)).tolist()


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("matrices", [2, 3])
def test_any_number_of_ranks_gives_the_plain_layers_results_and_gradients(
    tmp_path: Path, width: int, matrices: int
) -> None:
    def make(context: Context, layer: RoutedExperts) -> ExpertParallel:
        group = subgroups(WORLD, width)
        return ExpertParallel(layer, group, dispatcher("flat", group, even_placement(width, 1)))

    check_against_plain(tmp_path, make, [tokens_of(rank) for rank in range(WORLD)], plain_layer(matrices=matrices))


@pytest.mark.parametrize("kind", ["dedup", "two_phase", "halo_v2"])
def test_any_dispatcher_gives_the_same(tmp_path: Path, kind: str) -> None:
    def make(context: Context, layer: RoutedExperts) -> ExpertParallel:
        group = group_of(context)
        table = contiguous_table(EXPERTS, WORLD).swapped(0, 7).swapped(2, 3)
        return ExpertParallel(layer, group, dispatcher(kind, group, even_placement(WORLD, 2)), table)

    check_against_plain(tmp_path, make, [tokens_of(rank) for rank in range(WORLD)], plain_layer())


def test_a_rank_without_tokens_takes_part(tmp_path: Path) -> None:
    def make(context: Context, layer: RoutedExperts) -> ExpertParallel:
        group = group_of(context)
        return ExpertParallel(layer, group, dispatcher("dedup", group, even_placement(WORLD, 2)))

    inputs = [tokens_of(0), tokens_of(1, sequences=0), tokens_of(2, sequences=1), tokens_of(3, sequences=0)]
    check_against_plain(tmp_path, make, inputs, plain_layer())


def all_to(expert: int) -> Callable[[RoutedExperts], None]:
    """Tokens' first entry is their own doing (see below), so that they all choose this expert and its neighbour."""

    def change(layer: RoutedExperts) -> None:
        with torch.no_grad():
            layer.router.weight.zero_()
            layer.router.weight[expert, 0] = 8
            layer.router.weight[(expert + 1) % len(layer.router.weight), 0] = 4

    return change


@pytest.mark.parametrize("kind", ["flat", "dedup"])
def test_all_tokens_to_one_rank_leave_the_others_with_none(tmp_path: Path, kind: str) -> None:
    def make(context: Context, layer: RoutedExperts) -> ExpertParallel:
        group = group_of(context)
        return ExpertParallel(layer, group, dispatcher(kind, group, even_placement(WORLD, 2)))

    inputs = [tokens_of(rank) for rank in range(WORLD)]
    for x in inputs:
        x[..., 0] = 1
    check_against_plain(tmp_path, make, inputs, plain_layer(), all_to(6))


def test_each_rank_may_use_its_own_expert_alone(tmp_path: Path) -> None:
    def change(layer: RoutedExperts) -> None:
        with torch.no_grad():
            layer.router.weight.zero_()
            layer.router.weight[:, :WORLD] = torch.eye(WORLD) * 8

    def make(context: Context, layer: RoutedExperts) -> ExpertParallel:
        group = group_of(context)
        return ExpertParallel(layer, group, dispatcher("flat", group, even_placement(WORLD, 1)))

    inputs = [tokens_of(rank) for rank in range(WORLD)]
    for rank, x in enumerate(inputs):
        x[..., :WORLD] = torch.eye(WORLD)[rank]
    check_against_plain(tmp_path, make, inputs, plain_layer(WORLD, top_k=1), change)


def test_experts_that_do_not_divide_are_refused_or_placed_as_told(tmp_path: Path) -> None:
    def make(context: Context, layer: RoutedExperts) -> ExpertParallel:
        group = group_of(context)
        way = dispatcher("dedup", group, even_placement(WORLD, 2))
        with pytest.raises(ValueError, match="6 experts do not divide over 4 ranks"):
            ExpertParallel(layer, group, way)
        with pytest.raises(ValueError, match="8 experts on 4 ranks for 6 experts"):
            ExpertParallel(layer, group, way, contiguous_table(8, WORLD))
        return ExpertParallel(layer, group, way, contiguous_table(6, WORLD, uneven=True))

    check_against_plain(tmp_path, make, [tokens_of(rank) for rank in range(WORLD)], plain_layer(6))


def test_experts_that_moved_give_the_same_results(tmp_path: Path) -> None:
    # Rank 0 then holds three, rank 3 one: parameters change their shape.
    table = ExpertTable(((0, 1, 7), (2, 3), (5, 4), (6,)))

    def make(context: Context, layer: RoutedExperts) -> ExpertParallel:
        group = group_of(context)
        spread = ExpertParallel(layer, group, dispatcher("flat", group, even_placement(WORLD, 2)))
        before = dict(spread.experts.named_parameters())
        held = list(table.held[context.group.rank])
        weights = {name: weight.detach()[held] for name, weight in layer.experts.named_parameters()}
        with pytest.raises(ValueError, match="shape"):
            spread.place(table, {**weights, "up": weights["down"]})
        spread.place(table, weights)
        assert all(spread.experts.get_parameter(name) is weight for name, weight in before.items())
        return spread

    check_against_plain(tmp_path, make, [tokens_of(rank) for rank in range(WORLD)], plain_layer())


def test_counts_are_of_learning_passes_and_begin_again_when_taken(tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        group = group_of(context)
        spread = ExpertParallel(plain_layer(), group, dispatcher("flat", group, even_placement(2, 1)))
        x = tokens_of(context.group.rank)
        with torch.no_grad():
            spread(x)
        counted = [int(spread.take_counts().sum())]
        again = torch.utils.checkpoint.checkpoint(spread, x.clone().requires_grad_(), use_reentrant=False)
        again.sum().backward()
        return [*counted, int(spread.take_counts().sum()), int(spread.counts.sum())]

    copies = tokens_of(0).shape[0] * tokens_of(0).shape[1] * 2
    assert run_world(2, body, tmp_path) == [[0, copies, 0]] * 2


def test_stated_counts_are_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group = group_of(context)
        spread = ExpertParallel(plain_layer(), group, dispatcher("flat", group, even_placement(2, 1)))
        with pytest.raises(ValueError, match="no stated counts"):
            spread(torch.zeros(4, HIDDEN), [1] * EXPERTS)

    run_world(2, body, tmp_path)


def test_spreading_replaces_every_layer_of_a_model_by_its_name(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group = group_of(context)
        way = dispatcher("flat", group, even_placement(2, 1))
        model = torch.nn.Sequential(plain_layer(), torch.nn.ModuleDict({"inner": plain_layer()}))
        names = [name for name, _ in model.named_parameters()]
        spread = spread_experts(model, lambda name, plain: ExpertParallel(plain, group, way))
        assert list(spread) == ["0", "1.inner"]
        assert model[0] is spread["0"]
        assert [name for name, _ in model.named_parameters()] == names
        assert not spread_experts(model, lambda name, plain: plain)

    run_world(2, body, tmp_path)
