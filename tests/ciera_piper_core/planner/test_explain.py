"""One strategy in detail: its parts add up to what the plan says of it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner import explain as explanations
from ciera_piper_core.planner.explain import Explanation, explain
from ciera_piper_core.planner.imbalance import Routing
from ciera_piper_core.planner.search import Plan, search
from ciera_piper_core.planner.strategy import Question
from ciera_piper_core.planner.terminal import explanation_text
from ciera_piper_core.platforms import load_platform


@cache
def plan_of(name: str) -> Plan:
    settings: dict[str, dict[str, Any]] = {
        "deepseek-v3": {"gpus": 256, "only": {"pp": (8, 16, 32)}},
        "olmoe-1b-7b": {"gpus": 16, "routing": Routing(zipf=1.2)},
        "switch-base-128": {"gpus": 16, "only": {"pp": (4,), "tp": (2,)}},
    }
    return search(Question(catalogue.load(name), load_platform("frontier"), **settings[name]))


@pytest.mark.parametrize("name", ["deepseek-v3", "olmoe-1b-7b", "switch-base-128"])
@pytest.mark.parametrize("number", [1, 7, 40])
def test_parts_add_up(name: str, number: int) -> None:
    plan = plan_of(name)
    told = explain(plan, number)
    prediction = plan[number - 1]
    strategy = prediction.strategy
    assert told.prediction == prediction
    assert sum(told.time.values()) == pytest.approx(prediction.step_seconds)
    assert max(told.rank_bytes) == pytest.approx(prediction.peak_memory_bytes, abs=1)
    assert np.argmax(told.rank_bytes) == prediction.fullest_rank
    for rank, total in enumerate(told.rank_bytes):
        assert sum(amounts[rank] for amounts in told.memory.values()) == pytest.approx(total)
    architecture = plan.question.architecture
    assert sum(told.rank_layers) == len(architecture.layers) + len(architecture.encoder)
    assert len(told.rank_bytes) == len(told.in_flight) == strategy.pp
    assert plan.estimator.stage_memory_bytes(strategy) == [int(np.ceil(total)) for total in told.rank_bytes]


@pytest.mark.parametrize("name", ["deepseek-v3", "olmoe-1b-7b", "switch-base-128"])
def test_the_schedules_own_order_is_no_slower_than_the_slowest_stage_everywhere(name: str) -> None:
    plan = plan_of(name)
    told = explain(plan, 1)
    assert told.timeline is not None
    assert told.simulated_step_seconds is not None
    assert told.simulated_step_seconds <= told.prediction.step_seconds * (1 + 1e-9)
    assert told.simulated_step_seconds > 0.5 * told.prediction.step_seconds
    assert ((told.timeline.bubble >= 0) & (told.timeline.bubble < 1)).all()
    operations = sum(len(rank) for rank in told.timeline.order)
    assert operations >= 2 * told.prediction.strategy.pp * told.prediction.strategy.microbatches


def named(told: Explanation, start: str) -> Any:
    return next(exchange for exchange in told.exchanges if exchange.name.startswith(start))


def test_communication_is_counted() -> None:
    plan = plan_of("deepseek-v3")
    told = explain(plan, 1)
    strategy = told.prediction.strategy
    assert strategy.ep > 1
    exchange = named(told, "all-to-all")
    tokens = strategy.sequences_per_microbatch * 4096
    assert exchange.bytes_each == 2 * tokens * 8 * 7168
    passes = 3 if strategy.checkpointing == "full" else 2
    assert exchange.times % (2 * passes * strategy.microbatches) == 0
    assert exchange.seconds == pytest.approx(told.time["all to all"])
    send = named(told, "send")
    assert send.bytes_each == 2 * tokens * 7168
    assert all(exchange.known for exchange in told.exchanges)


def test_what_is_assumed_is_said() -> None:
    told = explain(plan_of("olmoe-1b-7b"), 1)
    text = "\n".join(told.known)
    for part in ("matmul: assumed", "peak: specified", "routing: assumed: Zipf 1.2", "hidden behind computation"):
        assert part in text
    load = [line for line in told.known if line.startswith("load of the busiest rank")]
    assert (len(load) == 1) == (told.prediction.strategy.ep > 1)


def test_the_text_holds_convention_peak_and_both_units() -> None:
    plan = plan_of("deepseek-v3")
    text = explanation_text(plan, explain(plan, 1))
    assert "causal convention" in text
    assert "191.5 TFLOP/s" in text
    assert re.search(r"\d+\.\d\d GB \(\d+\.\d\d GiB\) of 64\.00 GB \(59\.60 GiB\)", text)
    assert "waiting in the pipeline" in text
    assert "all ranks, GiB:" in text


def test_a_step_of_too_many_operations_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanations, "MOST_OPERATIONS", 10)
    plan = plan_of("olmoe-1b-7b")
    told = explain(plan, 1)
    assert told.timeline is told.simulated_step_seconds is None
    assert "too many operations" in explanation_text(plan, told)


@pytest.mark.parametrize("number", [0, -1, 10**9])
def test_numbers_that_are_not_there_are_refused(number: int) -> None:
    plan = plan_of("olmoe-1b-7b")
    with pytest.raises(ValueError, match=re.escape(f"there is no strategy {number}; the plan has 1 to {len(plan)}")):
        explain(plan, number)


def test_a_send_is_counted_where_the_table_of_time_says() -> None:
    told = explain(plan_of("deepseek-v3"), 1)
    send = named(told, "send to the next stage")
    assert "within 'waiting in the pipeline'" in send.known
    assert send.seconds > 0
    assert "waiting in the pipeline" in told.time


def test_the_papers_memory_and_the_cost_of_migration_stand_beside_ours() -> None:
    plan = plan_of("deepseek-v3")
    number = next(n for n in range(1, len(plan) + 1) if plan[n - 1].strategy.tp == 1 and plan[n - 1].strategy.ep > 1)
    told = explain(plan, number)
    strategy = told.prediction.strategy
    assert told.paper_rank_bytes is not None
    assert len(told.paper_rank_bytes) == strategy.pp
    assert told.migration is not None
    assert told.migration.bytes_per_gpu == 16 * 3 * 256 * 7168 * 2048 / strategy.ep
    text = explanation_text(plan, told)
    assert "The Piper paper's formula (Eq 3 and 4)" in text
    assert "Moving all experts of a layer" in text
