"""Tests of the expert suite: token counts, right results that pass the check, and errors that fail it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measure.group import RankGroup
from bench.suite import PRESETS, Case, Context, Site
from ciera_piper_core.moe import grouped
from suites import compute
from suites.expert_gemm import DISTRIBUTIONS, ExpertGemmSuite, token_counts

if TYPE_CHECKING:
    from bench.suite import Preset, Workload

SUITE = ExpertGemmSuite()
METHODS = ["grouped", "looped"]


@pytest.fixture(autouse=True)
def _one_copy_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "ROTATED_BYTES", 1)


def case_of(**changes: Any) -> Case:
    """Three experts of one of the smallest models, in float32."""
    params: dict[str, Any] = {
        "model": "qwen3-30b-a3b",
        "experts": 3,
        "tokens": 40,
        "distribution": "with_empty",
        "method": "grouped",
    }
    return Case(params | {"direction": "forward", "dtype": "float32", "threads": 0} | changes)


def ran(case: Case) -> Any:
    """The workload of the case after one iteration."""
    workload = SUITE.setup(case, Context(Site(seed=7), RankGroup()))
    workload.prepare()
    workload.run()
    return workload


def wrong_of(workload: Workload) -> int:
    try:
        return workload.check()
    finally:
        workload.close()


@given(st.sampled_from(DISTRIBUTIONS), st.integers(0, 10**6), st.integers(1, 300))
def test_counts_sum_to_the_tokens(distribution: str, tokens: int, experts: int) -> None:
    counts = token_counts(distribution, tokens, experts)
    assert sum(counts) == tokens
    assert len(counts) == experts
    assert min(counts) >= 0


@pytest.mark.parametrize(
    ("distribution", "counts"),
    [
        ("uniform", [33, 33, 32, 32]),
        # 130 / (1 + 1/2 + 1/3 + 1/4) = 62.4, and its half, third and quarter; the largest remainder gets the last.
        ("zipf", [62, 31, 21, 16]),
        ("with_empty", [65, 0, 65, 0]),
    ],
)
def test_known_counts(distribution: str, counts: list[int]) -> None:
    assert token_counts(distribution, 130, 4) == counts


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_even_counts_differ_by_one_at_most_and_zipf_never_rises(tokens: int, experts: int) -> None:
    even, zipf = token_counts("uniform", tokens, experts), token_counts("zipf", tokens, experts)
    assert max(even) - min(even) <= 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(zipf))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_right_results_pass(method: str, direction: str, distribution: str) -> None:
    assert wrong_of(ran(case_of(method=method, direction=direction, distribution=distribution))) == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_right_results_of_narrow_dtypes_pass(method: str, dtype: str) -> None:
    assert wrong_of(ran(case_of(method=method, dtype=dtype, direction="forward_backward"))) == 0


def test_experts_of_two_matrices_pass() -> None:
    assert wrong_of(ran(case_of(model="switch-base-128", direction="forward_backward"))) == 0


def test_fewer_tokens_than_experts_pass() -> None:
    assert wrong_of(ran(case_of(tokens=2, distribution="uniform", direction="forward_backward"))) == 0


def test_products_that_never_ran_are_all_wrong() -> None:
    workload = SUITE.setup(case_of(), Context(Site(), RankGroup()))
    # First, middle and last token of two experts.
    assert wrong_of(workload) == 2 * 3 * 2048


def test_a_group_that_ends_one_token_late_is_found() -> None:
    workload = ran(case_of())
    workload._ends = torch.tensor([21, 21, 40], dtype=torch.int32)
    workload.run()
    # Token 20 went to the expert before its own.
    assert 1000 < wrong_of(workload) <= 2048


def test_a_wrong_activation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "activate", lambda up, gate, weights: torch.relu(gate) * up)
    assert wrong_of(ran(case_of(dtype="bfloat16"))) > 1000


def broken_gradients(workload: Any, change: Any) -> None:
    """Let every run of the workload change its gradients afterwards."""
    right = workload.run

    def run() -> None:
        right()
        workload.gradients = tuple(change(index, gradient.clone()) for index, gradient in enumerate(workload.gradients))

    workload.run = run


@pytest.mark.parametrize("which", range(4), ids=["tokens", "up", "gate", "down"])
def test_a_wrong_gradient_is_found(which: int) -> None:
    workload = ran(case_of(direction="forward_backward"))
    broken_gradients(workload, lambda index, gradient: gradient * 1.01 if index == which else gradient)
    assert wrong_of(workload) > 100


def test_a_wrong_gradient_of_the_last_timed_iteration_is_found() -> None:
    workload = ran(case_of(direction="forward_backward"))
    workload.gradients[0][0, 3] += 1
    assert wrong_of(workload) == 1


@pytest.mark.parametrize("which", [1, 2, 3], ids=["up", "gate", "down"])
def test_a_gradient_of_an_expert_without_tokens_is_found(which: int) -> None:
    def change(index: int, gradient: torch.Tensor) -> torch.Tensor:
        if index == which:
            gradient[1, 3, 4] = 1e-20
        return gradient

    workload = ran(case_of(direction="forward_backward"))
    broken_gradients(workload, change)
    assert wrong_of(workload) == 1


def test_a_gradient_of_a_token_that_was_not_asked_for_is_found() -> None:
    def change(index: int, gradient: torch.Tensor) -> torch.Tensor:
        if index == 0:
            gradient[1, 0] = 1e-20
        return gradient

    workload = ran(case_of(direction="forward_backward"))
    broken_gradients(workload, change)
    assert wrong_of(workload) == 1


def test_the_weights_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(experts=2)
    weights = 2 * 3 * 2048 * 768 * 4
    monkeypatch.setattr(compute, "ROTATED_BYTES", 2 * weights + 1)
    workload = ran(case)
    used = []
    for _ in range(4):
        workload.prepare()
        used.append(workload._rotated[workload._current].up.data_ptr())
    assert len(set(used)) == 3
    assert used[0] == used[3]
    assert wrong_of(workload) == 0
    assert SUITE.memory_bytes(case, Site()) > 3 * weights


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_compare_both_methods_over_all_distributions(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert {case["distribution"] for case in cases} == set(DISTRIBUTIONS)
    by_method = [{k: v for k, v in case.params.items() if k != "method"} for case in cases]
    assert all(by_method.count(params) == 2 for params in by_method[:20])
    tokens = {case["tokens"] for case in cases}
    assert min(tokens) == 256
    assert max(tokens) == (2048 if preset == "quick" else 102400)


def test_one_expert_has_no_distribution() -> None:
    cases = SUITE.cases("quick", {"experts": [1]})
    assert {case["distribution"] for case in cases} == {"uniform"}


def test_operations_of_known_experts() -> None:
    assert SUITE.flops(case_of(tokens=100)) == 2 * 100 * 3 * 2048 * 768
    assert SUITE.flops(case_of(tokens=100, direction="forward_backward")) == 3 * 2 * 100 * 3 * 2048 * 768
    assert SUITE.flops(case_of(tokens=100, model="switch-base-128")) == 2 * 100 * 2 * 768 * 3072
