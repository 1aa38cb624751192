"""The alltoall suite: its cases, its sizes, and skewed exchanges against their oracle in real gloo worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from bench.errors import UsageError
from bench.suite import Case, Context, Site
from ciera_piper_core.alltoall import TRAFFIC_KINDS, calibration
from suites import raw_transfer
from suites.alltoall import HIDDEN, HIERARCHICAL, MEASURED, ROW_BYTES, TOP_K, AllToAllSuite
from suites.communication import DTYPE_BYTES
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Preset

SUITE = AllToAllSuite()


def case_of(
    ranks: int,
    traffic: str,
    dtype: str = "bfloat16",
    size: int = 100 * ROW_BYTES,
    algorithm: str = "flat",
    op: str = "all_to_all",
) -> Case:
    return Case(
        {
            "op": op,
            "algorithm": algorithm,
            "ranks": ranks,
            "traffic": traffic,
            "dtype": dtype,
            "bytes": size,
        }
    )


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_transfer, "ROUNDS", 1)
    monkeypatch.setattr(raw_transfer, "NODE_ROUND_BYTES", 1 << 20)


def test_quick_is_about_twenty_cases() -> None:
    cases = list(SUITE.cases("quick", {}))
    assert len(cases) == 21
    assert all(SUITE.skip_reason(case, Site(world=case["ranks"])) is None for case in cases)


@pytest.mark.parametrize("preset", ["standard", "full"])
def test_further_cases_cover_every_algorithm_once_each(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert len({case.id for case in cases}) == len(cases)
    algorithms = {(case["op"], case["algorithm"]) for case in cases}
    assert {("all_to_all", name) for name in HIERARCHICAL} < algorithms
    assert {("dispatch", "flat"), ("dispatch", "dedup")} < algorithms
    assert ("all_to_all", "dedup") not in algorithms


def test_who_names_algorithms_gets_these_alone() -> None:
    cases = list(SUITE.cases("standard", {"algorithm": ["halo_v1"], "ranks": [4]}))
    assert {case["algorithm"] for case in cases} == {"halo_v1"}
    assert {case["op"] for case in cases} == {"all_to_all"}
    # Other parameters apply to the further cases as well.
    assert {case["ranks"] for case in SUITE.cases("standard", {"ranks": [6]})} == {6}


def test_unknown_traffic_is_refused_with_what_is_known() -> None:
    with pytest.raises(UsageError, match=r"'warm'; known: uniform, .*rotating_hot_rank, and replay:FILE"):
        list(SUITE.cases("quick", {"traffic": ["warm"]}))


def test_routed_tokens_are_not_replayed() -> None:
    overrides = {"op": ["dispatch"], "algorithm": ["dedup"], "traffic": ["zipf", "rotating_hot_rank", "replay:x"]}
    assert {case["traffic"] for case in SUITE.cases("quick", overrides)} == {"zipf"}


def test_metrics_follow_operation_and_algorithm() -> None:
    def names(**changes: Any) -> set[str]:
        return {metric.name for metric in SUITE.metrics_for(case_of(4, "uniform", **changes))} - {
            metric.name for metric in MEASURED
        }

    assert names() == set()
    assert names(algorithm="halo_v1") == {"speedup_over_flat"}
    assert names(op="dispatch") == {"sent_share"}
    assert names(op="combine", algorithm="dedup") == {"speedup_over_flat", "sent_share"}


def test_where_flat_is_the_same_a_hierarchical_algorithm_is_skipped() -> None:
    case = case_of(4, "uniform", algorithm="halo_v1")
    assert "halo_v1 is the same as flat" in str(SUITE.skip_reason(case, Site(world=4)))
    assert SUITE.skip_reason(case, Site(world=4, nodes=2)) is None
    assert SUITE.skip_reason(case_of(4, "uniform", algorithm="auto"), Site(world=4)) is None


def test_tokens_are_whole() -> None:
    case = case_of(4, "uniform", op="dispatch", size=20000)
    assert SUITE.skip_reason(case, Site(world=4)) == (
        "20000 bytes are no whole tokens of 8 copies of 16384 bytes; use 16384 or 32768"
    )


def test_a_trace_that_is_missing_or_too_small_is_skipped(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    case = case_of(4, f"replay:{trace}")
    assert "cannot read router trace" in str(SUITE.skip_reason(case, Site(world=4)))
    assert SUITE.placed_params(case, Site(world=4)) == {}
    trace.write_text('{"counts": [1, 2]}')
    assert "2 experts cannot be replayed on 4 ranks" in str(SUITE.skip_reason(case, Site(world=4)))
    assert len(str(SUITE.placed_params(case, Site(world=4))["trace"])) == 12


def test_two_ranks_of_which_one_idles_are_no_case() -> None:
    assert list(SUITE.cases("quick", {"ranks": [2], "traffic": ["idle_rank"]})) == []


@pytest.mark.parametrize(
    ("ranks", "size", "reason"),
    [
        (2, 1024, None),
        (2, 1000, "1000 bytes are no whole rows of 64 bytes; use 960 or 1024"),
        (32, 1024, "1KiB give 32 ranks less than a row of 64 bytes each"),
        (2, 32 << 40, "32TiB a rank are more than can be dealt out exactly, 16TiB"),
        (1, 1024, "an all-to-all needs at least 2 ranks"),
    ],
)
def test_skip_reasons(ranks: int, size: int, reason: str | None) -> None:
    assert SUITE.skip_reason(case_of(ranks, "uniform", size=size), Site(world=ranks)) == reason


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_every_traffic_passes_its_oracle(world: int, tmp_path: Path) -> None:
    cases = [
        case_of(world, traffic, dtype)
        for traffic in TRAFFIC_KINDS
        for dtype in DTYPE_BYTES
        if SUITE.keeps(case_of(world, traffic))
    ]

    def body(context: Context) -> list[int]:
        wrong = []
        for case in cases:
            workload = SUITE.setup(case, context)
            for _ in range(2):
                workload.prepare()
                workload.run()
            wrong.append(workload.check())
        return wrong

    assert run_world(world, body, tmp_path) == [[0] * len(cases)] * world


def test_the_size_is_the_largest_ranks_total(tmp_path: Path) -> None:
    def body(context: Context) -> dict[str, tuple[int, float | None]]:
        works = {
            traffic: SUITE.setup(case_of(4, traffic, size=96 * ROW_BYTES), context).work for traffic in TRAFFIC_KINDS
        }
        return {traffic: (work.bytes // ROW_BYTES, work.busbw_factor) for traffic, work in works.items()}

    for sizes in run_world(4, body, tmp_path):
        # 4 x 96 rows; the hot rank gets half of them and an eighth (its share of the other half).
        assert sizes["uniform"] == (96, 0.75)
        assert sizes["hot_rank"] == (240, 0.75)
        assert sizes["idle_rank"] == (96, 0.75)
        # 96 rows over 1, 1/2, 1/3, 1/4: 46.08 to the most popular, from each of 4.
        assert sizes["zipf"] == (184, 0.75)


NODES_OF_2 = [
    Site(rank=rank, world=4, local_rank=rank % 2, ranks_per_node=2, node=rank // 2, nodes=2, scope="loopback", seed=5)
    for rank in range(4)
]


@pytest.mark.parametrize("algorithm", [*HIERARCHICAL, "auto"])
def test_every_algorithm_passes_its_oracle_over_two_nodes(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "SIZES", (1024,))
    monkeypatch.setattr(calibration, "ROUNDS", 1)
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 1)
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"counts": [5, 0, 1, 9]}\n{"counts": [0, 0, 1, 0]}\n')
    traffics = ("uniform", "zipf", "idle_rank", "rotating_hot_rank", f"replay:{trace}")

    def body(context: Context) -> list[int]:
        wrong = []
        for traffic in traffics:
            workload = SUITE.setup(case_of(4, traffic, algorithm=algorithm), context)
            assert workload.baseline is not None
            for _ in range(3):
                workload.prepare()
                workload.run()
                workload.prepare()
                workload.baseline()
            wrong.append(workload.check())
        return wrong

    assert run_world(4, body, tmp_path, NODES_OF_2) == [[0] * len(traffics)] * 4


@pytest.mark.parametrize("op", ["dispatch", "combine"])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_dispatchers_pass_their_oracle_and_report_their_share(op: str, dtype: str, tmp_path: Path) -> None:
    tokens = 40 * TOP_K * HIDDEN * DTYPE_BYTES[dtype]
    cases = [
        case_of(4, traffic, dtype, tokens, algorithm, op)
        for algorithm in ("flat", "dedup")
        for traffic in ("uniform", "zipf", "idle_rank")
    ]

    def body(context: Context) -> list[tuple[int, float, bool]]:
        results = []
        for case in cases:
            workload = SUITE.setup(case, context)
            workload.run()
            if workload.baseline is not None:
                workload.baseline()
            share = workload.observations()["sent_share"][0]
            results.append((workload.check(), share, workload.baseline is not None))
        return results

    for results in run_world(4, body, tmp_path, NODES_OF_2):
        assert [wrong for wrong, _, _ in results] == [0] * len(cases)
        assert [compared for *_, compared in results] == [case["algorithm"] == "dedup" for case in cases]
        shares = [share for _, share, _ in results]
        assert all(1 < share < 1.05 for share in shares[:3])
        # Top-8 over two nodes sends a quarter, and the routing beside it.
        assert shares[3] == pytest.approx(0.25, abs=0.03)
        assert all(share < 0.5 for share in shares[3:])


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_a_dispatch_that_is_wrong_is_found(op: str, tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload: Any = SUITE.setup(case_of(4, "zipf", size=8 * 16384, algorithm="dedup", op=op), context)
        right = workload._call

        def wrong() -> torch.Tensor:
            result: torch.Tensor = right().clone()
            if context.group.rank == 3:
                result.view(-1)[5] += 1
            return result

        workload._call = wrong
        workload.run()
        return int(workload.check())

    assert run_world(4, body, tmp_path, NODES_OF_2) == [0, 0, 0, 2]


class Swaps:
    """An algorithm that delivers everything, but the rows of two senders in each other's place."""

    def __init__(self, right: Any) -> None:
        self._right = right

    def exchange(
        self, send: torch.Tensor, send_splits: list[int] | None, recv_splits: list[int] | None, out: torch.Tensor
    ) -> None:
        self._right.exchange(send, send_splits, recv_splits, out)
        first, second, *rest = torch.chunk(out, 3)
        out.copy_(torch.cat([second, first, *rest]))


def test_rows_in_another_senders_place_are_wrong(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload: Any = SUITE.setup(case_of(3, "uniform", size=90 * ROW_BYTES), context)
        workload._algorithm = Swaps(workload._algorithm)
        workload.run()
        return int(workload.check())

    elements = 2 * 60 * ROW_BYTES // 2
    assert all(0.9 * elements < wrong <= elements for wrong in run_world(3, body, tmp_path))


class SpoilsOneElement(Swaps):
    """An algorithm that gets one element wrong."""

    def exchange(
        self, send: torch.Tensor, send_splits: list[int] | None, recv_splits: list[int] | None, out: torch.Tensor
    ) -> None:
        self._right.exchange(send, send_splits, recv_splits, out)
        out.view(-1)[5] += 1


def test_one_wrong_element_is_found(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload: Any = SUITE.setup(case_of(4, "zipf"), context)
        if context.group.rank == 3:
            workload._algorithm = SpoilsOneElement(workload._algorithm)
        workload.run()
        return int(workload.check())

    assert run_world(4, body, tmp_path) == [0, 0, 0, 2]


def test_memory_covers_the_hottest_rank() -> None:
    case = case_of(8, "hot_rank", size=64 << 20)
    # The hot rank sends 64 MiB and receives 4.5 times as much.
    assert SUITE.memory_bytes(case, Site(world=8, seed=3)) >= 5.5 * (64 << 20)
    assert SUITE.memory_bytes(case, Site(world=8, seed=3)) < 7 * (64 << 20)
    # On the way through neighbours there are more copies of it.
    halo = case_of(8, "hot_rank", size=64 << 20, algorithm="halo_v1")
    assert SUITE.memory_bytes(halo, Site(world=8, seed=3)) > 18 * (64 << 20)


def test_rows_of_skewed_traffic_carry_the_seed() -> None:
    placed = {traffic: SUITE.placed_params(case_of(4, traffic), Site(world=4, seed=9)) for traffic in TRAFFIC_KINDS}
    assert placed == {"uniform": {}, "zipf": {"seed": 9}, "hot_rank": {"seed": 9}, "idle_rank": {"seed": 9}}


def test_traffic_follows_the_seed_of_the_run(tmp_path: Path) -> None:
    def rows_received(seed: int) -> list[int]:
        sites = [Site(rank=rank, world=4, local_rank=rank, ranks_per_node=4, seed=seed) for rank in range(4)]

        def body(context: Context) -> int:
            workload: Any = SUITE.setup(case_of(4, "zipf"), context)
            return len(workload._received)

        return list(run_world(4, body, tmp_path, sites))

    first, again, other = rows_received(1), rows_received(1), rows_received(2)
    assert first == again
    assert first != other
    assert np.sum(first) == np.sum(other) == 400
