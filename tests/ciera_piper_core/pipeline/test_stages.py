"""Stages are parts of the plain model: together they have all of it, once, under its names, and compute the same."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.pipeline.schedules import SCHEDULES, rank_stages
from ciera_piper_core.pipeline.stages import Stages, keep_rank, stage_module
from tests.ciera_piper_core.pipeline.small_model import VOCAB, small_transformer


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_after_one_another_are_the_model(schedule: str) -> None:
    model = small_transformer(6)
    stages = Stages.evenly(6, rank_stages(schedule, 2))
    tokens = torch.randint(VOCAB, (2, 8), generator=torch.Generator().manual_seed(1))
    x = tokens
    for stage in range(stages.count):
        x = stage_module(model, stages, stage)(x)
    assert torch.equal(x, model(tokens))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_have_every_parameter_once_under_its_own_name(schedule: str) -> None:
    whole = dict(small_transformer(6).named_parameters())
    stages = Stages.evenly(6, rank_stages(schedule, 3 if schedule in ("gpipe", "1f1b") else 2))
    held: list[str] = []
    for rank in range(stages.ranks):
        model = small_transformer(6)
        keep_rank(model, stages, rank)
        held += [name for name, _ in model.named_parameters()]
        parts = [stage_module(model, stages, stage) for stage in stages.of_rank[rank]]
        assert {id(p) for part in parts for p in part.parameters()} == {id(p) for p in model.parameters()}
    assert sorted(held) == sorted(whole)


def test_a_stage_leaves_the_model_as_it_was() -> None:
    model = small_transformer(4)
    names = [name for name, _ in model.named_parameters()]
    stage_module(model, Stages.evenly(4, ((0,), (1,))), 1)
    assert [name for name, _ in model.named_parameters()] == names


def test_a_hook_of_one_stage_is_none_of_another() -> None:
    model = small_transformer(4)
    stages = Stages.evenly(4, ((0,), (1,)))
    first, second = (stage_module(model, stages, stage) for stage in range(2))
    called: list[str] = []
    first.register_forward_pre_hook(lambda *_: called.append("first"))
    second.register_forward_hook(lambda *_: called.append("second"))
    second(first(torch.zeros(1, 4, dtype=torch.int64)))
    assert called == ["first", "second"]


def test_a_stage_that_the_rank_has_not_is_refused() -> None:
    model = small_transformer(4)
    stages = Stages.evenly(4, ((0,), (1,)))
    keep_rank(model, stages, 0)
    with pytest.raises(ValueError, match=r"layers \[2, 3\]"):
        stage_module(model, stages, 1)


def test_a_model_of_another_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="4 layers; this one has 6"):
        keep_rank(small_transformer(6), Stages.evenly(4, ((0,), (1,))), 0)


@pytest.mark.parametrize(
    ("layers", "of_rank", "said"),
    [
        (((0,), ()), ((0,), (1,)), "need"),
        (((0,), (2,)), ((0,), (1,)), "once and in their order"),
        (((1,), (0,)), ((0,), (1,)), "once and in their order"),
        (((0,), (1,)), ((0,), (0,)), "once each"),
        (((0,), (1,)), ((0,),), "once each"),
        (((0,), (1,), (2,)), ((0, 1), (2,)), "as many stages"),
        (((0,), (1,)), ((1, 0),), "in their order"),
    ],
)
def test_stages_that_are_none_are_refused(
    layers: tuple[tuple[int, ...], ...], of_rank: tuple[tuple[int, ...], ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Stages(layers, of_rank)
