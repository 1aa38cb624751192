"""A plan as text: every number with its unit, every rejection with its meaning."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner import terminal
from ciera_piper_core.planner.candidates import CONSTRAINTS
from ciera_piper_core.planner.explain import explain
from ciera_piper_core.planner.fitting import Smallest
from ciera_piper_core.planner.search import Plan, search
from ciera_piper_core.planner.strategy import Question
from ciera_piper_core.platforms import load_platform


@cache
def plan_of(model: str, gpus: int) -> Plan:
    return search(Question(catalogue.load(model), load_platform("frontier"), gpus))


def test_the_heading_says_what_was_asked_and_what_mfu_means() -> None:
    text = "\n".join(terminal.heading(plan_of("mixtral-8x7b", 32)))
    for part in (
        "mixtral-8x7b (46.70 B parameters, 12.88 B active with embedding and output; published: ",
        "on 32 x AMD MI250X GCD",
        "64.00 GB (59.60 GiB) each",
        "128 sequences a step over all GPUs (the default: 4 times the GPUs)",
        "MFU: causal convention",
        "191.5 TFLOP/s a GPU",
        "measured on this platform: nothing",
    ):
        assert part in text, part


def test_the_ranking_has_a_row_for_each_strategy() -> None:
    plan = plan_of("mixtral-8x7b", 32)
    lines = terminal.ranking(plan, 5).splitlines()
    assert [line.split()[0] for line in lines[2:7]] == ["1", "2", "3", "4", "5"]
    assert lines[2].rstrip().endswith("*")
    assert lines[-1].startswith(f"{len(plan)} of {plan.evaluated} estimated strategies fit")


def test_rejections_say_what_they_mean() -> None:
    plan = plan_of("mixtral-8x7b", 32)
    text = terminal.rejections(plan)
    for name, count in plan.rejected.items():
        assert f"{count:,}" in text
        assert CONSTRAINTS[name] in text


def test_nothing_fits_names_component_and_remedy() -> None:
    text = terminal.nothing_fits(plan_of("deepseek-v3", 1), Smallest(224, exact=True))
    for part in ("on 1 GPU of frontier", "Nearest: PP 1", "too much", "state of routed experts", "would do: 224"):
        assert part in text
    assert "would do: 224, in whole nodes." in text
    assert "What helps: more GPUs, so that PP x EP can grow or an optimizer with less state." in text
    bound = terminal.nothing_fits(plan_of("deepseek-v3", 1), Smallest(224, exact=False))
    assert "would do: at most 224, in whole nodes." in bound
    none = terminal.nothing_fits(plan_of("deepseek-v3", 1), None)
    assert "None of the numbers of GPUs that were tried, up to the platform's 78848, would do" in none
    assert "What helps: an optimizer with less state." in none
    assert "more GPUs" not in none


def test_the_text_says_whether_the_ranking_has_the_simulated_step() -> None:
    plan = plan_of("mixtral-8x7b", 64)
    told = explain(plan, 1)
    assert "~" not in terminal.ranking(plan, 24)
    table = terminal.ranking(plan, 300)
    assert sum(" ~" in line for line in table.splitlines()[2:302]) == 300 - int(plan.simulated[:300].sum()) > 0
    assert table.endswith("~ step estimated for equal stages, not simulated")
    assert ", as ranked; ranks wait" in terminal.explanation_text(plan, told)
    estimated = replace(told, prediction=replace(told.prediction, simulated=False))
    assert "(the ranking has an estimate for equal stages)" in terminal.explanation_text(plan, estimated)
