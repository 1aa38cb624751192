"""Tests of the attention suite: every kind of heads passes its check, and every kind of error fails it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

from bench.measure.group import RankGroup
from bench.suite import PRESETS, Case, Context, Site
from ciera_piper_core.models import attention as block
from ciera_piper_core.models import catalogue
from suites.attention import AttentionSuite, sampled_positions

if TYPE_CHECKING:
    from bench.suite import Preset, Workload
    from ciera_piper_core.models.attention_core import Core

SUITE = AttentionSuite()
MODELS = {"mha": ("switch-base-128", 4), "gqa": ("qwen3-30b-a3b", 4), "mla": ("deepseek-v2-lite", 8)}


def case_of(heads: str = "mha", **changes: Any) -> Case:
    """A case of few heads and 70 tokens, in float32."""
    model, tensor_parallel = MODELS[heads]
    params: dict[str, Any] = {
        "model": model,
        "tensor_parallel": tensor_parallel,
        "sequence": 70,
        "batch": 2,
        "heads": heads,
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


@pytest.mark.parametrize("heads", MODELS)
@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_results_pass(heads: str, direction: str, dtype: str) -> None:
    assert wrong_of(ran(case_of(heads, direction=direction, dtype=dtype))) == 0


def test_a_block_that_never_ran_is_all_wrong() -> None:
    workload = SUITE.setup(case_of(), Context(Site(), RankGroup()))
    positions = len(sampled_positions(70))
    assert wrong_of(workload) == 2 * positions * 768


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_single_wrong_elements_are_counted(dtype: str) -> None:
    workload = ran(case_of(dtype=dtype))
    workload.output[0, 0, 5] += 0.5
    workload.output[1, 69, 767] = torch.nan
    assert wrong_of(workload) == 2


@pytest.mark.parametrize("heads", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_mask_is_found(heads: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sees_the_next_token(core: Core, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    monkeypatch.setattr(block, "attend", sees_the_next_token)
    assert wrong_of(ran(case_of(heads, dtype=dtype))) > 100


def test_swapped_heads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = block.attend
    monkeypatch.setattr(block, "attend", lambda core, q, k, v: right(core, q, k.flip(1), v.flip(1)))
    assert wrong_of(ran(case_of("mha"))) > 1000


@pytest.mark.parametrize("index", range(3), ids=["input", "qkv", "output"])
@pytest.mark.parametrize(("dtype", "factor"), [("float32", 1.01), ("bfloat16", 1.5)])
def test_a_wrong_gradient_is_found(index: int, dtype: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = ran(case_of(direction="forward_backward", dtype=dtype))
    right = workload.run

    def run() -> None:
        right()
        gradients = list(workload.gradients)
        gradients[index] = gradients[index] * factor
        workload.gradients = tuple(gradients)

    monkeypatch.setattr(workload, "run", run)
    assert wrong_of(workload) > 100


def test_a_wrong_gradient_of_the_last_timed_iteration_is_found() -> None:
    workload = ran(case_of(direction="forward_backward"))
    workload.gradients[0][1, 69, 3] += 1
    assert wrong_of(workload) == 1


def test_data_follow_from_the_seed() -> None:
    first, second = ran(case_of()), ran(case_of())
    assert torch.equal(first.output, second.output)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_reach_all_kinds_of_heads_and_sequences(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert {case["heads"] for case in cases} == {"mha", "gqa", "mla"}
    assert {case["direction"] for case in cases} == {"forward", "forward_backward"}
    lengths = {case["sequence"] for case in cases}
    assert lengths == ({512, 1024} if preset == "quick" else {512, 1024, 2048, 4096, 8192})
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        assert SUITE.memory_bytes(case, Site()) > 0
        assert case["heads"] == catalogue.load(case["model"]).attention.head_kind


def test_quick_is_small() -> None:
    for case in SUITE.cases("quick", {}):
        assert SUITE.memory_bytes(case, Site()) < 2**30
        assert SUITE.flops(case) < 1e11


def test_shards_that_do_not_divide_leave_no_case() -> None:
    overrides: dict[str, Any] = {"model": ["qwen2-57b-a14b"], "tensor_parallel": [4, 8]}
    assert {case["tensor_parallel"] for case in SUITE.cases("quick", overrides)} == {4}


def test_operations_of_a_known_block() -> None:
    case = case_of("mha", sequence=512, batch=1, tensor_parallel=1)
    projections = 2 * 512 * 4 * 768 * 768
    pairs = 12 * 512 * 513 // 2
    assert SUITE.flops(case) == projections + pairs * 2 * (64 + 64)
    assert SUITE.flops(case_of("mha", sequence=512, batch=1, tensor_parallel=1, direction="forward_backward")) == (
        3 * SUITE.flops(case)
    )


@pytest.mark.parametrize("sequence", [1, 2, 3, 5, 512, 8192])
def test_sampled_positions_reach_from_the_first_to_the_last(sequence: int) -> None:
    positions = sampled_positions(sequence)
    assert positions == sorted(set(positions))
    assert (positions[0], positions[-1]) == (0, sequence - 1)
    assert set(range(min(4, sequence))) <= set(positions)
