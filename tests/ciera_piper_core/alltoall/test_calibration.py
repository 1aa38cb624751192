"""Measuring on the spot: every algorithm at every size, alike on all ranks, and ended in time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.alltoall import calibration, make_all_to_all
from ciera_piper_core.alltoall.calibration import ROW_BYTES, calibrated, settled_seconds
from ciera_piper_core.alltoall.placement import even_placement
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    import torch.distributed as dist

    from bench.suite import Context
    from ciera_piper_core.alltoall.crossovers import Crossovers


def group_of(context: Context) -> dist.ProcessGroup:
    """The group of all ranks, which a world of several has."""
    assert context.group.data is not None
    return context.group.data


class Slowed:
    """Flat, and a pause before it on one rank."""

    def __init__(self, right: Any, pause_s: float) -> None:
        self._right, self._pause_s = right, pause_s

    def exchange(self, *arguments: Any) -> None:
        time.sleep(self._pause_s)
        self._right.exchange(*arguments)


def algorithms_of(context: Context, pause_s: float) -> dict[str, Any]:
    flat = make_all_to_all("flat", group_of(context), even_placement(4, 2))
    # The slowest rank's time counts.
    return {"flat": flat, "halo_v1": Slowed(flat, pause_s if context.group.rank == 3 else 0)}


def test_the_slower_algorithm_is_slower_by_what_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SIZES", (100, 4096))
    monkeypatch.setattr(calibration, "ROUNDS", 3)

    def body(context: Context) -> Crossovers:
        return calibrated(group_of(context), algorithms_of(context, 0.05), nodes=2)

    results = run_world(4, body, tmp_path)
    for result in results:
        assert [curve.seconds.seconds.tolist() for curve in result.curves] == [
            curve.seconds.seconds.tolist() for curve in results[0].curves
        ]
    curves = {(curve.traffic, curve.algorithm): curve for curve in results[0].curves}
    assert set(curves) == {(kind, name) for kind in calibration.TRAFFIC for name in ("flat", "halo_v1")}
    for kind in calibration.TRAFFIC:
        slow, fast = curves[kind, "halo_v1"], curves[kind, "flat"]
        # At least a row for each rank.
        assert fast.seconds.sizes.tolist() == [4.0 * ROW_BYTES, 4096.0]
        assert (slow.seconds.seconds > 2 * fast.seconds.seconds).all()
        assert fast.seconds.seconds[0] < 0.05
        assert (fast.nodes, fast.ranks) == (2, 4)
    assert results[0].choose(2, 4, 1000).algorithm == "flat"
    assert "measured at set-up" in results[0].choose(2, 4, 1000).reason


def test_times_are_ratios_to_flat_in_the_same_round() -> None:
    # The machine is three times slower in the last rounds; column 1 is flat.
    pace = torch.tensor([1.0, 1.0, 1.0, 3.0, 3.0], dtype=torch.float64)[:, None]
    by_round = pace * torch.tensor([[0.5, 1.0, 1.2]], dtype=torch.float64)
    assert settled_seconds(by_round, 1) == pytest.approx([0.5, 1.0, 1.2])


def test_who_beats_flat_in_some_rounds_only_is_no_faster() -> None:
    flat = torch.ones(8, dtype=torch.float64)
    lucky = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.5, 1.1, 1.1, 1.1], dtype=torch.float64)
    steady = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 5.0], dtype=torch.float64)
    assert settled_seconds(torch.stack([flat, lucky, steady], dim=1), 0) == pytest.approx([1, 1, 0.9])


def test_the_more_rounds_the_smaller_the_gain_that_is_sure() -> None:
    def ratios(won: int, rounds: int) -> torch.Tensor:
        slow = torch.where(torch.arange(rounds) < won, 0.8, 1.2).double()
        return torch.stack([torch.ones(rounds, dtype=torch.float64), slow], dim=1)

    assert settled_seconds(ratios(6, 9), 0) == pytest.approx([1, 1])
    assert settled_seconds(ratios(7, 9), 0) == pytest.approx([1, 0.8])
    assert settled_seconds(ratios(26, 45), 0) == pytest.approx([1, 0.8])
    assert settled_seconds(ratios(25, 45), 0) == pytest.approx([1, 1])


@pytest.mark.parametrize(("limit_seconds", "batches"), [(0.0, 1), (60.0, 3)])
def test_there_are_more_rounds_while_nobody_is_sure(
    limit_seconds: float, batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "SIZES", (1024, 2048))
    monkeypatch.setattr(calibration, "ROUNDS", 2)
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 5)
    monkeypatch.setattr(calibration, "_unsure", lambda by_round, flat: torch.ones(2, dtype=torch.bool))

    def body(context: Context) -> int:
        algorithms = algorithms_of(context, 0.0)
        exchange, calls = algorithms["halo_v1"].exchange, []
        algorithms["halo_v1"].exchange = lambda *arguments: (calls.append(1), exchange(*arguments))
        calibrated(group_of(context), algorithms, nodes=2, limit_seconds=limit_seconds)
        return len(calls)

    # One more warms up. Without time there are no further sizes either.
    sizes = 1 if limit_seconds == 0 else 2
    assert run_world(4, body, tmp_path) == [len(calibration.TRAFFIC) * sizes * (1 + 2 * batches)] * 4


def test_it_stops_before_a_larger_size_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ROUNDS", 2)

    def body(context: Context) -> Crossovers:
        return calibrated(group_of(context), algorithms_of(context, 0.02), nodes=2, limit_seconds=0.01)

    for result in run_world(4, body, tmp_path):
        assert {len(curve.seconds.sizes) for curve in result.curves} == {1}
