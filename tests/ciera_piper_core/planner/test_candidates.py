"""Which strategies are left to estimate, and that every other is counted under the constraint that it breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.candidates import CONSTRAINTS, candidates
from ciera_piper_core.planner.schedules import SCHEDULES, allowed
from ciera_piper_core.planner.stages import LayerKinds
from ciera_piper_core.planner.strategy import Question, Strategies
from ciera_piper_core.platforms import load_platform


def found(model: str, gpus: int, platform: str = "frontier", **settings: Any) -> tuple[Strategies, dict[str, int]]:
    question = Question(catalogue.load(model), load_platform(platform), gpus, **settings)
    strategies, rejected = candidates(question, LayerKinds.of(question.architecture, mtp=False))
    return strategies, dict(rejected)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["olmoe-1b-7b", "deepseek-v3", "switch-base-128"]), st.integers(1, 600))
def test_candidates_keep_every_constraint(model: str, gpus: int) -> None:
    strategies, rejected = found(model, gpus)
    architecture, platform = catalogue.load(model), load_platform("frontier")
    layers = len(architecture.layers) + len(architecture.encoder)
    assert rejected.keys() <= CONSTRAINTS.keys()
    assert all(count > 0 for count in rejected.values())
    assert (strategies.pp * strategies.ep * strategies.dp * strategies.tp == gpus).all()
    assert (architecture.experts.experts % strategies.ep == 0).all()
    assert (strategies.ep * strategies.tp <= platform.gpus_per_node * platform.single_hop_nodes)[
        strategies.ep > 1
    ].all()
    assert (strategies.tp <= platform.gpus_per_node).all()
    assert (strategies.sequences_per_gpu % strategies.microbatches == 0).all()
    assert (strategies.sequences_per_gpu * strategies.ep * strategies.dp == 4 * gpus).all()
    for code, schedule in enumerate(SCHEDULES):
        rows = strategies.take(strategies.schedule == code)
        if len(rows):
            assert allowed(schedule, rows.pp, rows.microbatches, layers).all()
    every = {tuple(vars(strategies[place]).values()) for place in range(min(len(strategies), 4000))}
    assert len(every) == min(len(strategies), 4000)


def test_what_does_not_matter_is_not_varied() -> None:
    strategies, _ = found("olmoe-1b-7b", 1)
    assert set(strategies.schedule) == {SCHEDULES.index("1f1b")}
    assert set(strategies.alltoall) == {0}
    assert set(strategies.zero_stage) == {0}
    inside, _ = found("olmoe-1b-7b", 8)
    assert set(inside.alltoall) == {0}
    across, _ = found("olmoe-1b-7b", 16)
    assert set(across.alltoall[across.ep * across.tp > 8]) == {0, 1, 2}


@pytest.mark.parametrize(("model", "gpus", "ep"), [("deepseek-v3", 3, 3), ("qwen3-30b-a3b", 24, 24)])
def test_experts_that_do_not_divide(model: str, gpus: int, ep: int) -> None:
    strategies, rejected = found(model, gpus, only={"ep": (ep,)})
    assert len(strategies) == 0
    assert set(rejected) == {"experts"}
    placed, rejected = found(model, gpus, only={"ep": (ep,)}, placement="uneven")
    assert len(placed) > 0
    assert "experts" not in rejected


@pytest.mark.parametrize(
    ("only", "gpus", "settings", "constraint"),
    [
        ({"pp": (128,)}, 128, {}, "layers"),
        ({"pp": (5,)}, 8, {}, "gpus"),
        ({"pp": (3,), "ep": (5,)}, 16, {}, "gpus"),
        ({"tp": (16,)}, 16, {}, "tensor"),
        ({"ep": (64,)}, 64, {}, "locality"),
        ({"pp": (1,), "tp": (1,)}, 8, {"global_batch": 12}, "batch"),
        ({"microbatches": (7,)}, 8, {}, "batch"),
        ({"pp": (4,), "schedule": ("1f1b",)}, 4, {"sequences_per_gpu": 2}, "microbatches"),
        ({"pp": (4,), "schedule": ("zero_bubble",)}, 4, {"sequences_per_gpu": 2}, "microbatches"),
        ({"pp": (8,), "schedule": ("interleaved",), "microbatches": (20,)}, 8, {"sequences_per_gpu": 20}, None),
        ({"pp": (3,), "schedule": ("interleaved",), "microbatches": (7,)}, 3, {"sequences_per_gpu": 7}, "rounds"),
    ],
)
def test_each_constraint_is_named(
    only: dict[str, tuple[int | str, ...]], gpus: int, settings: dict[str, Any], constraint: str | None
) -> None:
    strategies, rejected = found("olmoe-1b-7b", gpus, only=only, **settings)
    if constraint is None:
        assert len(strategies) > 0
    else:
        assert len(strategies) == 0
        assert constraint in rejected


def test_values_that_divide_nothing_are_counted_beside_those_that_do() -> None:
    strategies, rejected = found("olmoe-1b-7b", 8, only={"pp": (2, 3)})
    assert set(strategies.pp) == {2}
    assert rejected["gpus"] > 0


def test_a_prime_number_of_gpus_leaves_data_parallelism() -> None:
    strategies, rejected = found("olmoe-1b-7b", 127)
    assert set(zip(strategies.pp, strategies.ep, strategies.tp, strict=True)) == {(1, 1, 1)}
    assert set(rejected) == {"layers", "experts", "tensor"}


def test_the_smallest_microbatches_are_one_a_mesh() -> None:
    question = Question(catalogue.load("olmoe-1b-7b"), load_platform("frontier"), 8)
    strategies, _ = candidates(question, LayerKinds.of(question.architecture), smallest_microbatches=True)
    assert (strategies.sequences_per_microbatch == 1).all()
    assert (np.unique(strategies.microbatches) == [4, 8, 16, 32]).all()
