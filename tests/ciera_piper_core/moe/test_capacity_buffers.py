"""Tests of capacity buffers: with room for all they are the plain layer, with less they drop the last choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.moe.capacity_buffers import DEGREES, TRIALS, CapacityBuffers, DegreeChoice
from ciera_piper_core.moe.expert_table import ExpertTable, contiguous_table
from tests.ciera_piper_core.moe.expert_worlds import EXPERTS, group_of, plain_layer, relative, target_of, tokens_of
from tests.ciera_piper_core.moe.test_expert_parallel import all_to, check_against_plain
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.models.feed_forward import RoutedExperts

WORLD = 4


def buffers(
    context: Context,
    layer: RoutedExperts,
    *,
    algorithm: str = "two_phase",
    table: ExpertTable | None = None,
    capacity_factor: float = 0.0,
    degrees: Sequence[int] = (2,),
) -> CapacityBuffers:
    """Over all ranks, two to a node."""
    group, world = group_of(context), context.group.world
    way = make_all_to_all(algorithm, group, even_placement(world, 2))
    return CapacityBuffers(layer, group, way, table, capacity_factor=capacity_factor, degrees=degrees)


@pytest.mark.parametrize(
    ("algorithm", "degree", "matrices"), [("flat", 1, 3), ("two_phase", 2, 2), ("two_phase", 4, 3)]
)
def test_with_room_for_all_nothing_differs_from_the_plain_layer(
    tmp_path: Path, algorithm: str, degree: int, matrices: int
) -> None:
    def make(context: Context, layer: RoutedExperts) -> CapacityBuffers:
        return buffers(context, layer, algorithm=algorithm, degrees=(degree,))

    check_against_plain(tmp_path, make, [tokens_of(rank) for rank in range(WORLD)], plain_layer(matrices=matrices))


def test_ranks_without_tokens_take_part(tmp_path: Path) -> None:
    inputs = [tokens_of(0), tokens_of(1, sequences=0), tokens_of(2, sequences=1), tokens_of(3, sequences=0)]
    check_against_plain(tmp_path, buffers, inputs, plain_layer())


def test_all_tokens_to_one_expert_need_the_largest_buffer(tmp_path: Path) -> None:
    inputs = [tokens_of(rank) for rank in range(WORLD)]
    for x in inputs:
        x[..., 0] = 1
    check_against_plain(tmp_path, buffers, inputs, plain_layer(), all_to(6))


def test_ranks_may_hold_different_numbers_of_experts(tmp_path: Path) -> None:
    def make(context: Context, layer: RoutedExperts) -> CapacityBuffers:
        return buffers(context, layer, table=contiguous_table(6, WORLD, uneven=True))

    check_against_plain(tmp_path, make, [tokens_of(rank) for rank in range(WORLD)], plain_layer(6))


def test_what_has_no_room_is_dropped_last_choices_first(tmp_path: Path) -> None:
    factor = 0.5

    def body(context: Context) -> tuple[int, int, float]:
        rank = context.group.rank
        layer = plain_layer()
        spread = buffers(context, layer, capacity_factor=factor, degrees=(1,))
        x = tokens_of(rank)
        got = spread(x)
        # The same by hand: first choices of all tokens, then second ones; an expert takes the first few.
        tokens = x.flatten(0, 1)
        routes = layer.router(x)
        room = [spread.capacity] * EXPERTS
        wanted = torch.zeros_like(tokens)
        for choice in range(routes.experts.shape[1]):
            for token, expert in enumerate(routes.experts[:, choice].tolist()):
                if room[expert]:
                    room[expert] -= 1
                    row = tokens[token : token + 1]
                    inner = torch.nn.functional.silu(row @ layer.experts.gate[expert].T)
                    out = (inner * (row @ layer.experts.up[expert].T)) @ layer.experts.down[expert].T
                    wanted[token] += routes.weights[token, choice] * out[0]
        served = EXPERTS * spread.capacity - sum(room)
        assert spread.dropped == routes.experts.numel() - served
        return spread.capacity, spread.dropped, relative(got.flatten(0, 1), wanted)

    for capacity, dropped, difference in run_world(2, body, tmp_path):
        assert capacity == 3  # 0.5 * 24 tokens * 2 choices / 8 experts
        assert dropped > 0
        assert difference < 1e-6


def test_the_degree_is_tried_out_and_then_the_same_on_all_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[list[int], int | None, set[int]]:
        choice = DegreeChoice(group_of(context))
        tried = []
        while choice.chosen is None:
            tried.append(choice.next())
            # Ranks disagree on what is fast; the slowest one counts. The first of each is slow everywhere.
            times = {1: (3.0, 3.0), 2: (1.0, 9.0), 4: (2.0, 2.5)}
            choice.took(100.0 if len(tried) <= len(DEGREES) else times[choice.next()][context.group.rank])
        choice.took(0.0)
        return tried, choice.next(), set(choice.seconds.values())

    for tried, chosen, seconds in run_world(2, body, tmp_path):
        assert tried == list(DEGREES) * TRIALS
        assert chosen == 4
        assert seconds == {3.0, 9.0, 2.5}


def test_a_backward_pass_that_computes_anew_cuts_as_before(tmp_path: Path) -> None:
    def body(context: Context) -> list[float]:
        spread = buffers(context, plain_layer(), degrees=DEGREES)
        differences = []
        for _ in range(TRIALS * len(DEGREES) + 1):
            gradients = []
            for anew in (False, True):
                x = tokens_of(context.group.rank).requires_grad_()
                y = torch.utils.checkpoint.checkpoint(spread, x, use_reentrant=False) if anew else spread(x)
                (y * target_of(0, y)).sum().backward()
                gradients.append(x.grad)
            differences.append(relative(gradients[1], gradients[0]))
        assert spread.degree.chosen in DEGREES
        return differences

    for differences in run_world(2, body, tmp_path):
        assert max(differences) < 1e-6


def test_a_negative_factor_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        with pytest.raises(ValueError, match=r"0 \(room for all\) or more, not -1"):
            buffers(context, plain_layer(), algorithm="flat", capacity_factor=-1)

    run_world(2, body, tmp_path)
