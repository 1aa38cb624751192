"""A range of GPUs: the smallest on which the model fits, the best plan there, a row for each number."""

from __future__ import annotations

import re

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.fitting import Smallest
from ciera_piper_core.planner.range import parse_gpus, plan_range
from ciera_piper_core.planner.strategy import Question
from ciera_piper_core.platforms import load_platform


def test_the_range_ends_at_the_smallest_that_fits() -> None:
    question = Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 64)
    told: list[str] = []
    answer = plan_range(question, 4, 64, told.append)
    assert answer.smallest == Smallest(16, exact=True)
    assert answer.plan.question.gpus == 16
    assert [row.gpus for row in answer.rows] == [4, 8, 16, 32, 64]
    assert [row.fitting > 0 for row in answer.rows] == [False, False, True, True, True]
    assert answer.rows[0].strategy == "nothing fits: memory"
    assert answer.rows[2].mfu == answer.plan[0].mfu
    assert told[0].startswith("smallest number of GPUs")


def test_a_range_in_which_nothing_fits() -> None:
    question = Question(catalogue.load("deepseek-v3"), load_platform("frontier"), 16)
    answer = plan_range(question, 8, 16)
    assert answer.smallest is None
    assert answer.plan.question.gpus == 16
    assert answer.plan.nearest_miss is not None


def test_numbers_of_gpus() -> None:
    assert parse_gpus("64") == (64, 64)
    assert parse_gpus("8:4096") == (8, 4096)
    for text in ("", "0", "-4", "8:4", "many", "8:"):
        with pytest.raises(ValueError, match=re.escape(f"not {text!r}")):
            parse_gpus(text)
