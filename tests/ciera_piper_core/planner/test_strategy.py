"""Strategies, columns of them, and questions: what is asked for is checked, what is said is exact."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.imbalance import Routing
from ciera_piper_core.planner.strategy import Question, Strategies, Strategy, doubling, parse_only
from ciera_piper_core.platforms import load_platform

BASE = Strategy(4, 8, 2, 1, 16, 32, "1f1b", "full", 1, "halo")
QUESTION = Question(catalogue.load("olmoe-1b-7b"), load_platform("frontier"), 64)


def test_a_strategy_knows_its_gpus_and_batch() -> None:
    assert (BASE.gpus, BASE.sequences_per_microbatch, BASE.global_batch) == (64, 2, 512)


def test_columns_give_the_strategies_back() -> None:
    others = [BASE, replace(BASE, pp=8, schedule="zbv", alltoall="flat"), replace(BASE, zero_stage=3)]
    columns = Strategies.of(others)
    assert [columns[place] for place in range(len(columns))] == others
    assert columns.take(columns.pp == 8)[0] == others[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pp": 0}, "pp must be 1 or more, not 0"),
        ({"schedule": "2f2b"}, "schedule is one of gpipe, 1f1b"),
        ({"zero_stage": 4}, "zero_stage is one of 0, 1, 2, 3, not 4"),
        ({"microbatches": 5}, "32 sequences a GPU cannot be cut into 5"),
    ],
)
def test_impossible_strategies_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(BASE, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 0}, "gpus must be 1 or more"),
        ({"gpus": 10**6}, "platform 'frontier' has 1 to 78848 devices, not 1000000"),
        ({"global_batch": 8, "sequences_per_gpu": 8}, "not both"),
        ({"optimizer": "lion"}, "optimizer is one of adam"),
        ({"precision": "fp32"}, "product rates for bfloat16 only"),
        ({"placement": "any"}, "placement is one of even, uneven"),
        ({"convention": "8n"}, "convention is one of 6n, causal, full"),
        ({"only": {"cp": (2,)}}, "unknown dimension 'cp'"),
        ({"only": {"alltoall": ("ring",)}}, "alltoall is one of flat, two_phase, halo, not 'ring'"),
        ({"only": {"pp": (0,)}}, "pp must be 1 or more, not 0"),
    ],
)
def test_impossible_questions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(QUESTION, **changes)


def test_the_batch_follows_from_one_rule_and_says_so() -> None:
    assert QUESTION.global_sequences == 256
    assert "the default" in QUESTION.batch_rule
    assert replace(QUESTION, global_batch=100).global_sequences == 100
    assert replace(QUESTION, sequences_per_gpu=8).global_sequences is None


def test_restrictions_are_read_as_bench_run_reads_them() -> None:
    assert parse_only(["pp=4", "ep=8:64", "schedule=1f1b,zbv", "zero_stage=1,3"]) == {
        "pp": (4,),
        "ep": (8, 16, 32, 64),
        "schedule": ("1f1b", "zbv"),
        "zero_stage": (1, 3),
    }
    assert doubling("3:10") == [3, 6, 10]


@pytest.mark.parametrize("text", ["pp", "pp=", "pp=x", "pp=8:4", "pp=0:4", "cp=2", "schedule=2f2b", "ep=1.5"])
def test_wrong_restrictions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_only([text])


@pytest.mark.parametrize("factor", [4.01, 100.0, 1e300])
def test_load_factors_that_no_routing_has_are_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"is impossible for mixtral-8x7b: .* at most 4 times the mean, at EP 4"):
        Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 64, routing=Routing(load_factor=factor))


def test_a_load_factor_is_cut_to_what_each_ep_can_have_and_that_is_said() -> None:
    question = Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 64, routing=Routing(load_factor=3.0))
    assert question.routing_text == "busiest rank 3 x the mean (cut to what is possible: 2 x at EP 2)"
    assert replace(question, gpus=3).routing_text == "busiest rank 3 x the mean"
    assert replace(question, routing=Routing()).routing_text == "balanced"
