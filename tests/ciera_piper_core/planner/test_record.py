"""A plan as plain values: what is exact, simulated or advised is in them."""

from __future__ import annotations

import json
from typing import Any

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.fitting import Smallest
from ciera_piper_core.planner.imbalance import Routing
from ciera_piper_core.planner.record import plan_record
from ciera_piper_core.planner.search import search
from ciera_piper_core.planner.strategy import Question
from ciera_piper_core.platforms import load_platform


def question_of(model: str, gpus: int, **settings: Any) -> Question:
    return Question(catalogue.load(model), load_platform("frontier"), gpus, **settings)


def test_each_strategy_says_whether_its_step_is_simulated() -> None:
    plan = search(question_of("mixtral-8x7b", 64, routing=Routing(load_factor=3.0)))
    record = plan_record(plan, 300)
    assert [each["simulated"] for each in record["strategies"]] == plan.simulated[:300].tolist()
    assert {each["simulated"] for each in record["strategies"]} == {True, False}
    assert "cut to what is possible: 2 x at EP 2" in record["routing"]
    assert (record["smallest_gpus"], record["smallest_gpus_exact"]) == (None, None)
    json.dumps(record, allow_nan=False)


def test_what_helps_follows_from_whether_more_gpus_would() -> None:
    plan = search(question_of("deepseek-v3", 8))
    more = plan_record(plan, 1, smallest_gpus=Smallest(224, exact=False))
    assert (more["smallest_gpus"], more["smallest_gpus_exact"]) == (224, False)
    assert more["nearest_miss"]["advice"].startswith("more GPUs")
    assert plan_record(plan, 1)["nearest_miss"]["advice"] == "an optimizer with less state"
