"""The suite of expert load: its cases, what routers do in a training, and a check that can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from bench.suite import PRESETS, Case, Context, Site
from suites.load_balance import PHASES, LoadBalanceSuite, steps_of

if TYPE_CHECKING:
    from pathlib import Path

SUITE = LoadBalanceSuite()
SITE = Site()


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """A short text; the standard library would take a second to read."""
    lines = (f"line {number}: the quick brown fox jumps over {number * number} lazy dogs\n" for number in range(3000))
    path = tmp_path / "text.txt"
    path.write_text("".join(lines))
    return str(path)


def case_of(**params: Any) -> Case:
    defaults: dict[str, Any] = {
        "model": "mixtral-8x7b",
        "scale": "tiny",
        "router": "top_k",
        "balance_weight": 0.0,
        "skew": 0.0,
        "steps": 10,
        "sequence": 32,
        "batch": 2,
        "learning_rate": 3e-3,
        "corpus": "",
    }
    return Case({**defaults, **params})


def context() -> Context:
    """Of one process; the suite asks nothing of a group."""
    group: Any = None
    return Context(SITE, group)


def test_presets_are_cases_that_can_run() -> None:
    for preset in PRESETS:
        cases = list(SUITE.cases(preset, {}))
        assert cases
        assert all(SUITE.memory_bytes(case, SITE) > 0 for case in cases)
        assert {case["router"] for case in cases} == {"top_k", "capacity", "expert_choice", "loss_free"}
    assert SUITE.skip_reason(next(iter(SUITE.cases("quick", {}))), SITE) is None


def test_no_case_differs_by_what_its_router_does_not_use() -> None:
    assert not SUITE.keeps(case_of(router="loss_free", balance_weight=0.01))
    assert not SUITE.keeps(case_of(router="expert_choice", skew=0.5))
    assert SUITE.keeps(case_of(router="capacity", balance_weight=0.01, skew=0.5))


def test_skip_reasons(tmp_path: Path) -> None:
    assert SUITE.skip_reason(case_of(corpus=str(tmp_path / "none")), SITE) is not None
    assert SUITE.skip_reason(case_of(learning_rate=-1.0), SITE) is not None


def test_phases() -> None:
    assert [list(steps_of(phase, 60)) for phase in PHASES] == [
        list(range(6)),
        list(range(27, 33)),
        list(range(54, 60)),
    ]
    assert [list(steps_of(phase, 3)) for phase in PHASES] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("params", "least", "most"),
    [
        # Of 8 experts 2 are chosen: the busiest can have 4 times the mean.
        ({"router": "top_k"}, 1.0, 4.0),
        ({"router": "top_k", "skew": 2.0}, 2.5, 4.0),
        # What is dropped makes the mean smaller, too.
        ({"router": "capacity"}, 1.0, 2.6),
        ({"router": "expert_choice"}, 1.0, 1.0),
        ({"router": "loss_free"}, 1.0, 4.0),
    ],
)
def test_what_each_router_does(corpus: str, params: dict[str, Any], least: float, most: float) -> None:
    workload = SUITE.setup(case_of(corpus=corpus, **params), context())
    workload.prepare()
    workload.run()
    assert workload.check() == 0
    found = workload.observations()
    workload.close()
    assert found.keys() == {metric.key for metric in SUITE.metrics} - {"latency"}
    for phase in PHASES:
        (load,) = found[f"load[phase={phase}]"]
        (entropy,) = found[f"entropy[phase={phase}]"]
        assert least <= load <= most + 1e-9
        assert 0 < entropy <= 1 + 1e-9
        assert (entropy > 1 - 1e-6) == (load < 1 + 1e-6)
        (dropped,), (unserved,) = found[f"dropped[phase={phase}]"], found[f"unserved[phase={phase}]"]
        if params["router"] == "capacity":
            assert 0 < dropped < 0.6
        else:
            assert dropped == 0
        assert 0 <= unserved < 0.5
        assert (unserved > 0) <= (params["router"] in ("capacity", "expert_choice"))
    assert found["loss[phase=last]"][0] < found["loss[phase=first]"][0]


def test_balance_loss_evens_the_load(corpus: str) -> None:
    loads = []
    for weight in (0.0, 1.0):
        workload = SUITE.setup(case_of(corpus=corpus, balance_weight=weight, skew=1.0, steps=60), context())
        loads.append(workload.observations()["load[phase=last]"][-1])
        workload.close()
    assert loads[1] < loads[0] - 0.2


def test_check_sees_counts_that_a_router_cannot_give(corpus: str) -> None:
    workload: Any = SUITE.setup(case_of(corpus=corpus, steps=3), context())
    served = workload.served[1][0]
    workload.served[1][0] = replace(served, counts=served.counts - torch.eye(8, dtype=torch.int64)[0])
    assert workload.check() == 1
    workload.losses[0] = float("nan")
    assert workload.check() == 2
    workload.close()


def test_check_knows_capacities(corpus: str) -> None:
    for router in ("capacity", "expert_choice"):
        workload: Any = SUITE.setup(case_of(corpus=corpus, steps=3, router=router), context())
        served = workload.served[2][0]
        more = served.counts + torch.eye(8, dtype=torch.int64)[0]
        workload.served[2][0] = replace(served, counts=more, most=served.most + 32)
        assert workload.check() == 1
        workload.close()
