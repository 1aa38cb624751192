"""Tests of recipes: what is refused, and what follows from the values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.training.small_recipe import small_recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp8"}, "unknown precision 'fp8'; known: fp32, bf16, fp16"),
        ({"gradient_precision": "fp8"}, "unknown gradient precision 'fp8'"),
        ({"optimizer": "sgd"}, "unknown optimizer 'sgd'; known: adam, adafactor"),
        ({"checkpointing": "some"}, "unknown checkpointing 'some'"),
        ({"microbatches": 0}, "microbatches must be a whole number above 0, not 0"),
        ({"sequence": 8.0}, "sequence must be a whole number above 0, not 8.0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay and clip_norm must be 0 or more"),
    ],
)
def test_wrong_values_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        small_recipe(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "hash"}, "unknown router 'hash'; known: top_k, capacity, expert_choice, loss_free"),
        ({"balance_weight": -0.1}, "balance_weight must be 0 or more"),
        ({"skew": float("nan")}, "skew must be 0 or more"),
        ({"capacity_factor": 0.0}, "capacity_factor must be above 0"),
    ],
)
def test_wrong_routing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Routing(**settings)


def test_batches_divide_over_ranks_and_microbatches() -> None:
    recipe = small_recipe(global_batch=24, microbatches=3, sequence=10)
    assert recipe.tokens_per_step == 240
    assert [recipe.sequences_per_microbatch(width) for width in (1, 2, 4, 8)] == [8, 4, 2, 1]
    with pytest.raises(ValueError, match=r"24 sequences does not make 3 microbatches on each of 5 ranks; .* of 15"):
        recipe.sequences_per_microbatch(5)
