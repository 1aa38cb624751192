"""The vectorised estimator against the oracle, and what must hold of any estimate."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.candidates import candidates
from ciera_piper_core.planner.communication import Overlap
from ciera_piper_core.planner.estimate import Estimates, Estimator, columns_of
from ciera_piper_core.planner.estimate_reference import reference_estimate
from ciera_piper_core.planner.imbalance import Routing
from ciera_piper_core.planner.strategy import Question, Strategies, Strategy
from ciera_piper_core.platforms import load_platform

CASES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "plain": ("olmoe-1b-7b", "frontier", 16, {}),
    "mla": ("deepseek-v3", "frontier", 64, {"routing": Routing(load_factor=1.5)}),
    "alternating": ("llama-4-maverick", "dgx-h200", 32, {"flash": False, "optimizer": "adafactor"}),
    "encoder": ("switch-base-128", "dgx-a100", 16, {"convention": "full"}),
    "uneven": ("qwen3-30b-a3b", "frontier", 24, {"placement": "uneven", "routing": Routing(zipf=1.2)}),
    "further tokens": ("deepseek-v3", "frontier", 32, {"mtp": True, "convention": "6n", "optimizer": "sgd"}),
    "overlap": ("mixtral-8x7b", "frontier", 16, {"overlap": Overlap(0.5, 0.5, 0.5, 0.5)}),
    "dense residual": ("arctic", "dgx-h200", 16, {"sequence": 2048, "global_batch": 64}),
}


@cache
def estimated(name: str) -> tuple[Question, Strategies, Estimates]:
    model, platform, gpus, options = CASES[name]
    question = Question(catalogue.load(model), load_platform(platform), gpus, **options)
    estimator = Estimator(question)
    strategies, _ = candidates(question, estimator.kinds)
    return question, strategies, estimator.estimate(strategies)


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_the_oracles(name: str) -> None:
    question, strategies, estimates = estimated(name)
    short = np.flatnonzero(strategies.pp * strategies.microbatches <= 800)
    sample = np.random.default_rng(0).choice(short, 14, replace=False)
    for place in sample:
        strategy = strategies[int(place)]
        reference = reference_estimate(question, strategy)
        said = str(strategy)
        assert estimates.peak_memory_bytes[place] == pytest.approx(max(reference.rank_bytes), rel=1e-9), said
        assert reference.rank_bytes[estimates.fullest_rank[place]] == pytest.approx(max(reference.rank_bytes)), said
        # ZBV between pp and 2 pp - 1 microbatches is interpolated.
        between = strategy.schedule == "zbv" and strategy.pp < strategy.microbatches < 2 * strategy.pp - 1
        assert estimates.step_seconds[place] == pytest.approx(reference.step_seconds, rel=0.08 if between else 1e-9), (
            said
        )
        assert estimates.mfu[place] == pytest.approx(reference.mfu, rel=0.08 if between else 1e-9), said
        assert estimates.hfu[place] == pytest.approx(reference.hfu, rel=0.08 if between else 1e-9), said


@pytest.mark.parametrize("name", CASES)
def test_no_estimate_is_above_the_peak_and_recomputation_counts_in_hfu_alone(name: str) -> None:
    _, strategies, estimates = estimated(name)
    assert (estimates.mfu > 0).all()
    assert (estimates.hfu >= estimates.mfu).all()
    assert (estimates.hfu <= 1).all()
    none = strategies.checkpointing == 0
    assert (estimates.hfu == estimates.mfu)[none].all()


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["olmoe-1b-7b", "deepseek-v3", "qwen3-235b-a22b"]),
    st.sampled_from(["frontier", "dgx-a100", "dgx-h200"]),
    st.integers(1, 64),
    st.sampled_from([512, 4096, 32768]),
    st.sampled_from(["6n", "causal"]),
)
def test_mfu_is_never_above_the_peak(model: str, platform: str, gpus: int, sequence: int, convention: str) -> None:
    question = Question(
        catalogue.load(model), load_platform(platform), gpus, sequence=sequence, convention=convention  # type: ignore[arg-type]
    )  # fmt: skip
    estimator = Estimator(question)
    strategies, _ = candidates(question, estimator.kinds)
    estimates = estimator.estimate(strategies)
    assert (estimates.mfu <= 1).all()


def test_any_part_of_the_strategies_gets_the_same_estimates() -> None:
    question, strategies, estimates = estimated("plain")
    some = np.random.default_rng(1).choice(len(strategies), 200, replace=False)
    again = Estimator(question).estimate(strategies.take(some))
    np.testing.assert_allclose(again.step_seconds, estimates.step_seconds[some], rtol=1e-12)
    np.testing.assert_allclose(again.peak_memory_bytes, estimates.peak_memory_bytes[some], rtol=1e-12)
    np.testing.assert_allclose(Estimator(question).peaks(strategies.take(some)), again.peak_memory_bytes, rtol=1e-12)


def rank_parts(question: Question, strategy: Strategy) -> dict[str, float]:
    """Memory of the first rank by component."""
    parts = Estimator(question).footprint.components(strategy.pp, strategy.schedule, columns_of(strategy))  # type: ignore[arg-type]
    return {name: float(amount[0, 0]) for name, amount in parts.items()}


def test_more_expert_parallelism_divides_weights_but_not_activations() -> None:
    """Qwen3-235B, EP 8 against 64, the same sequences a GPU."""
    question = Question(catalogue.load("qwen3-235b-a22b"), load_platform("dgx-h200"), 64, sequences_per_gpu=2)
    few = rank_parts(question, Strategy(1, 8, 8, 1, 2, 2, "1f1b", "none", 0, "flat"))
    many = rank_parts(question, Strategy(1, 64, 1, 1, 2, 2, "1f1b", "none", 0, "flat"))
    for state in ("weights", "gradients", "master", "moments"):
        assert few[f"routed experts: {state}"] == 8 * many[f"routed experts: {state}"]
    for part in ("routed experts", "dispatch", "attention"):
        assert few[f"activations: {part}"] == many[f"activations: {part}"] > 0


def test_imbalance_enters_as_the_maximum_load() -> None:
    strategy = Strategy(1, 8, 1, 1, 4, 4, "1f1b", "none", 0, "flat")
    balanced = Question(catalogue.load("olmoe-1b-7b"), load_platform("frontier"), 8)
    uneven = replace(balanced, routing=Routing(zipf=1.2))
    factor = uneven.routing.factors(64, 8, np.array([8]))[0]
    before, after = rank_parts(balanced, strategy), rank_parts(uneven, strategy)
    assert after["activations: routed experts"] == pytest.approx(factor * before["activations: routed experts"])
    assert after["activations: attention"] == before["activations: attention"]
    times = [Estimator(question).estimate(columns_of(strategy)).step_seconds[0] for question in (balanced, uneven)]
    assert times[1] > times[0]


def test_static_memory_is_sixteen_bytes_a_parameter_on_one_gpu() -> None:
    question = Question(catalogue.load("olmoe-1b-7b"), load_platform("frontier"), 1)
    rows = columns_of(Strategy(1, 1, 1, 1, 4, 4, "1f1b", "none", 0, "flat"))
    from ciera_piper_core.models.parameters import model_parameters

    state = Estimator(question).footprint.state_bytes(1, "1f1b", rows)
    assert state[0, 0] == 16 * model_parameters(question.architecture).total


def test_zero_divides_the_replicated_state_and_leaves_the_experts() -> None:
    question = Question(catalogue.load("olmoe-1b-7b"), load_platform("frontier"), 8)
    of_stage = [rank_parts(question, Strategy(1, 4, 2, 1, 4, 4, "1f1b", "none", stage, "flat")) for stage in range(4)]
    for first, state in ((1, "master"), (1, "moments"), (2, "gradients"), (3, "weights")):
        amounts = [parts[f"attention: {state}"] for parts in of_stage]
        assert amounts[first] * 8 == pytest.approx(amounts[0])
        assert amounts[:first] == [amounts[0]] * first
    assert len({parts["routed experts: moments"] for parts in of_stage}) == 1


def test_the_first_stage_of_1f1b_holds_as_many_microbatches_as_there_are_stages() -> None:
    question = Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 8)
    rows = columns_of(Strategy(4, 2, 1, 1, 16, 16, "1f1b", "none", 0, "flat"))
    attention = Estimator(question).footprint.components(4, "1f1b", rows)["activations: attention"][0]
    assert attention / attention[-1] == pytest.approx([4, 3, 2, 1])
