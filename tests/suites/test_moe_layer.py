"""The moe_layer suite: its cases, and layers in real gloo worlds against the oracle, right ones and broken ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.suite import PRESETS, Case, Context, Site
from ciera_piper_core.alltoall.dispatch import Dispatched
from ciera_piper_core.models.architecture import Attention, Experts, Layer
from ciera_piper_core.models.flops import layer_flops
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from suites import moe_layer, spread_layer, training_peak
from suites.moe_layer import MoELayerSuite
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

SUITE = MoELayerSuite()
HIDDEN = 32
LAYER = Layer(Attention(4, 2, 8, 8), Experts(6, 2, 16, shared_ffn=16))


@pytest.fixture(autouse=True)
def _small_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case computes a small layer, on ranks that are forked and so inherit it."""
    for module in (moe_layer, spread_layer):
        monkeypatch.setattr(module, "layer_of", lambda case: (LAYER, HIDDEN))
    monkeypatch.setattr(training_peak, "EDGES", (32,))
    monkeypatch.setattr(training_peak, "SECONDS", 0.01)


def case_of(**changes: Any) -> Case:
    params: dict[str, Any] = {
        "model": "mixtral-8x7b",
        "scale": "tiny",
        "ranks": 2,
        "sequence": 12,
        "batch": 2,
        "algorithm": "flat",
        "router": "top_k",
        "skew": 0.0,
        "direction": "forward_backward",
        "dtype": "float32",
    }
    return Case(params | changes)


def wrong(
    folder: Path, case: Case, ranks_per_node: int | None = None, broken: Callable[[Any], None] | None = None
) -> list[int]:
    """What each rank's check finds after a pass."""
    ranks = case["ranks"]
    on_node = ranks_per_node or ranks
    sites = [
        Site(rank, ranks, rank % on_node, on_node, rank // on_node, ranks // on_node, scope="loopback", seed=3)
        for rank in range(ranks)
    ]

    def body(context: Context) -> int:
        workload = SUITE.setup(case, context)
        if broken is not None:
            broken(workload)
        workload.run()
        if workload.baseline is not None:
            workload.baseline()
            workload.run()
        found = workload.check()
        workload.close()
        return found

    return run_world(ranks, body, folder, sites)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"direction": "forward"},
        {"dtype": "bfloat16"},
        {"dtype": "float16", "skew": 1.0},
        {"router": "capacity", "skew": 1.0},
        {"router": "expert_choice"},
        {"ranks": 4, "algorithm": "dedup"},
    ],
    ids=lambda changes: ",".join(f"{name}={value}" for name, value in changes.items()) or "plain",
)
def test_right_layers_pass(changes: dict[str, Any], tmp_path: Path) -> None:
    case = case_of(**changes)
    assert wrong(tmp_path, case, ranks_per_node=2) == [0] * case["ranks"]


@pytest.mark.parametrize("algorithm", ["halo_v1", "auto"])
def test_hierarchical_algorithms_pass(algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong(tmp_path, case_of(ranks=4, algorithm=algorithm, dtype="bfloat16"), ranks_per_node=2) == [0] * 4


def test_a_layer_that_never_ran_is_all_wrong(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload = SUITE.setup(case_of(direction="forward"), context)
        return workload.check()

    # First, middle and last token of two sequences.
    assert run_world(2, body, tmp_path) == [2 * 3 * HIDDEN] * 2


def test_tokens_of_another_expert_are_found(tmp_path: Path) -> None:
    def broken(workload: Any) -> None:
        places = ExpertParallel._places

        def other(self: ExpertParallel, experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ranks, slots = places(self, experts)
            return ranks, (slots + 1) % 3

        ExpertParallel._places = other  # type: ignore[method-assign]

    assert min(wrong(tmp_path, case_of(direction="forward"), broken=broken)) > 100


def test_weights_that_are_left_out_are_found(tmp_path: Path) -> None:
    def broken(workload: Any) -> None:
        combine = Dispatched.combine
        # Doubled, as if the choices' weights were not made to sum to 1.
        Dispatched.combine = lambda self, outputs: combine(self, outputs * 2)  # type: ignore[method-assign]

    assert min(wrong(tmp_path, case_of(direction="forward"), broken=broken)) > 100


@pytest.mark.parametrize(
    "name", ["routed_experts.experts.up", "routed_experts.router.weight", "attention.weights.qkv", "input"]
)
def test_a_wrong_gradient_is_found(name: str, tmp_path: Path) -> None:
    def broken(workload: Any) -> None:
        right = workload._pass

        def changed(upstream: torch.Tensor) -> None:
            right(upstream)
            workload.gradients[name] *= 2

        workload._pass = changed

    assert min(wrong(tmp_path, case_of(), broken=broken)) > 20


def test_work_of_a_rank() -> None:
    work = moe_layer.layer_work(case_of(ranks=4, direction="forward"))
    assert work.flops == 24 * sum(layer_flops(LAYER, HIDDEN, 12, "causal").values())
    assert work.items == 4 * 24
    assert moe_layer.layer_work(case_of(ranks=4)).flops == 3 * work.flops


def test_skip_reasons() -> None:
    assert SUITE.skip_reason(case_of(), Site(world=2)) is None
    assert "at least 2 ranks" in str(SUITE.skip_reason(case_of(ranks=1), Site()))
    assert "6 experts leave some of 8 ranks" in str(SUITE.skip_reason(case_of(ranks=8), Site(world=8)))
    assert "the same as flat" in str(SUITE.skip_reason(case_of(algorithm="halo_v1"), Site(world=2)))


def test_only_other_algorithms_are_compared_with_flat() -> None:
    names = [metric.name for metric in SUITE.metrics_for(case_of())]
    assert names == ["latency", "throughput", "mfu", "tokens_per_second"]
    assert SUITE.metrics_for(case_of(algorithm="dedup"))[-1].name == "speedup_over_flat"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_no_case_twice(preset: Any) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert len({case.id for case in cases}) == len(cases) > 0


def test_the_peak_says_where_it_is_from(tmp_path: Path) -> None:
    placed = SUITE.placed_params(case_of(), Site(world=2))
    assert placed["convention"] == "causal"
    assert placed["peak"] == "measured"

    def body(context: Context) -> tuple[float | None, float | None]:
        workload = SUITE.setup(case_of(), context)
        # Measured once.
        return workload.work.peak_flops_per_second, moe_layer.peak_of_a_rank(case_of(), context)

    for peak, again in run_world(2, body, tmp_path):
        assert peak is not None
        assert peak == again > 0
