"""The alltoall suite: its cases, its sizes, and skewed exchanges against their oracle in real gloo worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ciera_piper_core.alltoall
from bench.suite import Case, Context, Site
from ciera_piper_core.alltoall import TRAFFIC_KINDS
from suites import raw_transfer
from suites.alltoall import ROW_BYTES, AllToAllSuite
from suites.communication import DTYPE_BYTES
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

SUITE = AllToAllSuite()


def case_of(ranks: int, traffic: str, dtype: str = "bfloat16", size: int = 100 * ROW_BYTES) -> Case:
    return Case(
        {
            "op": "all_to_all",
            "algorithm": "flat",
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


class SwapsTwoSenders:
    """An algorithm that delivers everything, but the rows of two senders in each other's place."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def exchange(
        self, send: torch.Tensor, send_splits: list[int] | None, recv_splits: list[int] | None, out: torch.Tensor
    ) -> None:
        torch.distributed.all_to_all_single(out, send, recv_splits, send_splits, group=self._group)
        assert recv_splits is not None
        first, second, *rest = torch.split(out, recv_splits)
        out.copy_(torch.cat([second, first, *rest]))


def test_rows_in_another_senders_place_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ciera_piper_core.alltoall, "make_all_to_all", lambda name, group: SwapsTwoSenders(group))

    def body(context: Context) -> int:
        workload = SUITE.setup(case_of(3, "uniform", size=90 * ROW_BYTES), context)
        workload.run()
        return workload.check()

    elements = 2 * 60 * ROW_BYTES // 2
    assert all(0.9 * elements < wrong <= elements for wrong in run_world(3, body, tmp_path))


def test_one_wrong_element_is_found(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        workload: Any = SUITE.setup(case_of(4, "zipf"), context)
        right = workload._call

        def wrong() -> None:
            right()
            if context.group.rank == 3:
                workload._received.view(-1)[5] += 1

        workload._call = wrong
        workload.run()
        return int(workload.check())

    assert run_world(4, body, tmp_path) == [0, 0, 0, 2]


def test_memory_covers_the_hottest_rank() -> None:
    case = case_of(8, "hot_rank", size=64 << 20)
    # The hot rank sends 64 MiB and receives 4.5 times as much.
    assert SUITE.memory_bytes(case, Site(world=8, seed=3)) >= 5.5 * (64 << 20)
    assert SUITE.memory_bytes(case, Site(world=8, seed=3)) < 7 * (64 << 20)


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
