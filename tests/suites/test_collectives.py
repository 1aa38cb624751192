"""The collectives suite: its cases, and every operation against its oracle in real gloo worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import busbw_factor
from bench.suite import Case, Context, Site
from suites import raw_transfer
from suites.collectives import OPS, CollectivesSuite
from suites.communication import DTYPE_BYTES, size_unit
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from suites.exchange import Exchange

SUITE = CollectivesSuite()


def case_of(op: str, ranks: int, dtype: str = "float32", size: int | None = None) -> Case:
    """A case of the size, or of some 1000 elements."""
    size = size or 1000 * size_unit(op, ranks, dtype)
    return Case({"op": op, "ranks": ranks, "dtype": dtype, "bytes": size, "algorithm": "library", "traffic": "uniform"})


def prepared(case: Case, context: Context) -> Exchange:
    workload: Any = SUITE.setup(case, context)
    return workload


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_transfer, "ROUNDS", 1)
    monkeypatch.setattr(raw_transfer, "NODE_ROUND_BYTES", 1 << 20)


def test_quick_is_about_thirty_cases() -> None:
    assert len(list(SUITE.cases("quick", {}))) == 30


@pytest.mark.parametrize("preset", ["quick", "standard", "full"])
@pytest.mark.parametrize("ranks", [2, 3, 6, 48, 4096])
def test_preset_sizes_fit_any_number_of_ranks(preset: Any, ranks: int) -> None:
    cases = list(SUITE.cases(preset, {"ranks": [ranks]}))
    assert [SUITE.skip_reason(case, Site(world=ranks)) for case in cases] == [None] * len(cases)
    assert len({case.id for case in cases}) == len(cases)
    assert {case["op"] for case in cases} == set(OPS)
    assert all(case["bytes"] > 0 for case in cases)


def test_preset_sizes_stay_round_where_they_can() -> None:
    assert {case["bytes"] for case in SUITE.cases("quick", {"ranks": [4]})} == {
        size << 10 for size in (1, 64, 1024, 4096, 16384)
    }


@given(st.sampled_from(OPS), st.integers(2, 70), st.sampled_from(sorted(DTYPE_BYTES)), st.integers(1, 10**6))
def test_a_size_that_was_asked_for_is_never_changed(op: str, ranks: int, dtype: str, size: int) -> None:
    (case,) = SUITE.cases("quick", {"op": [op], "ranks": [ranks], "dtype": [dtype], "bytes": [size]})
    assert case["bytes"] == size
    reason = SUITE.skip_reason(case, Site(world=ranks))
    assert (reason is None) == (size % size_unit(op, ranks, dtype) == 0)


def test_the_reason_names_sizes_that_fit() -> None:
    reason = SUITE.skip_reason(case_of("all_gather", 3, size=1000), Site(world=3))
    assert reason == ("1000 bytes do not divide into units of 12 (elements of float32, 3 at a time); use 996 or 1008")
    reason = SUITE.skip_reason(case_of("all_reduce", 3, size=3), Site(world=3))
    assert reason == "3 bytes do not divide into units of 4 (elements of float32, 1 at a time); use 4"


def test_one_rank_is_no_collective() -> None:
    assert SUITE.skip_reason(case_of("all_gather", 1, size=1024), Site()) is not None


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_every_operation_passes_its_oracle_in_every_dtype(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> dict[str, Any]:
        outcome = {}
        for op in OPS:
            for dtype in DTYPE_BYTES:
                case = case_of(op, world, dtype)
                workload = prepared(case, context)
                for _ in range(3):
                    workload.prepare()
                    workload.run()
                wrong = workload.check()
                work = workload.work
                outcome[f"{op} {dtype}"] = (wrong, work.bytes, work.busbw_factor, bool(work.bound_seconds))
        return outcome

    for outcome in run_world(world, body, tmp_path):
        assert outcome == {
            f"{op} {dtype}": (0, case_of(op, world, dtype)["bytes"], busbw_factor(op, world), True)
            for op in OPS
            for dtype in DTYPE_BYTES
        }


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_one_element_that_the_library_gets_wrong_is_found(dtype: str, tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        counts = []
        for op in OPS:
            workload = prepared(case_of(op, 3, dtype), context)
            right = workload._call

            def wrong(workload: Exchange = workload, right: Any = right) -> None:
                right()
                if context.group.rank == 1:
                    workload._received[-1] += 1

            workload._call = wrong
            workload.prepare()
            workload.run()
            counts.append(workload.check())
        return counts

    assert run_world(3, body, tmp_path) == [[0] * len(OPS), [2] * len(OPS), [0] * len(OPS)]


def test_a_rank_that_sends_nothing_is_noticed_by_all_in_a_sum(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload = prepared(case_of("all_reduce", 3), context)
        if context.group.rank == 2:
            assert workload._source is not None
            workload._source.zero_()
        workload.prepare()
        workload.run()
        return workload.check()

    wrong = run_world(3, body, tmp_path)
    assert min(wrong) > 1800, "almost every element of three ranks' sum needs rank 2, in both calls"


def test_an_operation_that_moves_nothing_is_wrong_in_every_element(tmp_path: Path) -> None:
    def body(context: Context) -> list[tuple[int, int]]:
        counts = []
        for op in ("all_gather", "reduce_scatter", "all_to_all", "send_recv"):
            workload = prepared(case_of(op, 2), context)
            workload.run()
            workload._call = lambda: None
            counts.append((workload.check(), workload._received.numel()))
        return counts

    for counts in run_world(2, body, tmp_path):
        assert [wrong for wrong, _ in counts] == [all_of_them for _, all_of_them in counts]


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_a_sum_in_place_stays_the_same_over_many_iterations(dtype: str, tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload = prepared(case_of("all_reduce", 2, dtype), context)
        first = None
        for _ in range(150):
            workload.prepare()
            workload.run()
            first = workload._received.clone() if first is None else first
        assert torch.equal(first, workload._received)
        return workload.check()

    assert run_world(2, body, tmp_path) == [0, 0]


def test_rows_say_what_a_rank_contributes_where_s_is_the_total() -> None:
    placed = {op: SUITE.placed_params(case_of(op, 4, size=4096), Site(world=4)) for op in OPS}
    assert {op: params for op, params in placed.items() if params} == {
        "all_gather": {"bytes_per_rank": 1024},
        "reduce_scatter": {"bytes_per_rank": 1024},
    }


def test_memory_covers_the_buffers() -> None:
    for op in OPS:
        case = case_of(op, 2, size=1 << 30)
        assert SUITE.memory_bytes(case, Site(world=2)) > 2 << 30
