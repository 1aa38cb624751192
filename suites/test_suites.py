"""The single-process suites under pytest-benchmark: ``pytest suites/``, with its JSON, compare and histogram options.

Each test is a case of the quick preset: set up as the harness does, timed by pytest-benchmark, and
checked against the suite's own oracle. ``bench run`` measures more carefully and stores rows.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal

import pytest

from bench.launch.site import local_site, with_hardware
from bench.measure.group import RankGroup
from bench.measure.runner import memory_reason
from bench.registry import SUITE_GROUP, load_suite
from bench.suite import Context

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

    from bench.suite import Case, Suite

ROUNDS = 5

# Other packages, and the harness itself, have suites too; this file is about those beside it.
HERE = [entry.name for entry in entry_points(group=SUITE_GROUP) if entry.module.startswith("suites.")]
SUITES = [suite for suite in map(load_suite, sorted(HERE)) if not suite.distributed]
CASES = [
    pytest.param(suite, case, id=f"{suite.name}-{case.id}") for suite in SUITES for case in suite.cases("quick", {})
]

pytestmark = pytest.mark.alone


@pytest.fixture(scope="session")
def context() -> Context:
    """This process, on the GPU if there is one."""
    import torch

    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    return Context(with_hardware(local_site(0, 1, device, seed=0)), RankGroup())


def test_the_suites_are_installed() -> None:
    assert {suite.name for suite in SUITES} >= {"attention", "expert_gemm", "matmul_peak", "memory"}


def _finished(run: Callable[[], None], device: str) -> Callable[[], None]:
    """``run`` that returns when its work is done, so that a host clock can time it."""
    if device != "cuda":
        return run

    def run_and_wait() -> None:
        import torch

        run()
        torch.cuda.synchronize()

    return run_and_wait


@pytest.mark.parametrize(("suite", "case"), CASES)
def test_case(suite: Suite, case: Case, context: Context, benchmark: BenchmarkFixture) -> None:
    if reason := suite.skip_reason(case, context.site) or memory_reason(suite, case, context.site):
        pytest.skip(reason)
    workload = suite.setup(case, context)
    try:
        run = _finished(workload.run, context.site.device)
        benchmark.group = suite.name
        benchmark.extra_info |= {**case.params, **suite.placed_params(case, context.site)}
        benchmark.extra_info |= {"flops": workload.work.flops, "bytes": workload.work.bytes}
        benchmark.pedantic(run, setup=workload.prepare, rounds=ROUNDS, warmup_rounds=1)  # type: ignore[no-untyped-call]
        assert workload.check() == 0
    finally:
        workload.close()
