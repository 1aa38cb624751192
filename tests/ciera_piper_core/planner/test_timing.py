"""The time model's parts: what ZeRO stages exchange, what overlap hides, what grows with what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.communication import Overlap
from ciera_piper_core.planner.estimate import Estimator, columns_of
from ciera_piper_core.planner.explain import step_components
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.platforms import load_platform

if TYPE_CHECKING:
    from ciera_piper_core.planner.timing import StepTimes

QUESTION = Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 64)
STRATEGY = Strategy(4, 8, 2, 1, 8, 16, "1f1b", "none", 0, "flat")


def step(question: Question = QUESTION, **changes: Any) -> StepTimes:
    strategy = replace(STRATEGY, **changes)
    estimator, rows = Estimator(question), columns_of(strategy)
    state = estimator.footprint.state_bytes(strategy.pp, strategy.schedule, rows)  # type: ignore[arg-type]
    return estimator.timing.step(strategy.pp, strategy.schedule, rows, state)  # type: ignore[arg-type]


def test_higher_zero_stages_exchange_more_often() -> None:
    seconds = [float(step(zero_stage=stage).replicated_sync[0]) for stage in range(4)]
    # Scattering gradients and gathering weights moves as much as adding gradients up.
    assert seconds[1] == pytest.approx(seconds[0], rel=0.02)
    assert seconds[1] < seconds[2] < seconds[3]
    experts = {float(step(zero_stage=stage).expert_sync[0]) for stage in range(4)}
    assert len(experts) == 1


def test_one_replica_has_nothing_to_exchange() -> None:
    times = step(ep=1, dp=1, pp=32, microbatches=16, schedule="gpipe", tp=2)
    assert times.replicated_sync[0] == times.expert_sync[0] == 0


def test_declared_overlap_hides_communication() -> None:
    shown = step()
    for name in ("all_to_all", "point_to_point", "data_parallel"):
        hidden = step(replace(QUESTION, overlap=Overlap(**{name: 1.0})))
        assert hidden.total[0] < shown.total[0], name
    everything = step(replace(QUESTION, overlap=Overlap(1.0, 1.0, 1.0, 1.0)))
    assert everything.replicated_sync[0] == everything.expert_sync[0] == 0


def test_checkpointing_costs_the_forward_again() -> None:
    none, full = (
        step_components(Estimator(QUESTION), replace(STRATEGY, checkpointing=mode)) for mode in ("none", "full")
    )
    assert not any("again" in name for name in none)
    for part in ("routed experts", "attention projections", "attention scores"):
        assert full[f"{part}: computed again"] == full[f"{part}: forward"] == pytest.approx(none[f"{part}: forward"])
    assert full["all to all"] == pytest.approx(1.5 * none["all to all"])
    selective = step_components(Estimator(QUESTION), replace(STRATEGY, checkpointing="selective"))
    assert [name for name in selective if "again" in name] == ["attention scores: computed again"]


def test_zero_bubble_schedules_wait_less_than_1f1b() -> None:
    waits = {}
    for schedule in ("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"):
        times = step(schedule=schedule)
        waits[schedule] = float((times.pipeline - times.busy)[0])
    assert waits["1f1b"] == pytest.approx(waits["gpipe"], rel=0.1)
    assert waits["zbv"] < waits["interleaved"] < waits["1f1b"]
    assert waits["zero_bubble"] < waits["1f1b"]


def test_ranks_without_experts_work_less() -> None:
    deepseek = Question(catalogue.load("deepseek-v3"), load_platform("frontier"), 256)
    rows = columns_of(Strategy(32, 8, 1, 1, 32, 32, "1f1b", "none", 0, "flat"))
    work = np.sum([*Estimator(deepseek).timing.rank_seconds(32, "1f1b", rows)], axis=0)[0]
    assert work[0] < work[1] < work[2]
    assert work[2] == pytest.approx(work[3])
