"""``auto`` in real gloo worlds: right rows whatever it chooses, the same choice on all ranks, no counts of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ciera_piper_core.alltoall import auto, calibration, make_all_to_all
from ciera_piper_core.alltoall.auto import AutoAllToAll, AutoPlan, transit
from ciera_piper_core.alltoall.autograd import differentiable
from ciera_piper_core.alltoall.crossovers import CHOICES, Crossovers, from_points
from ciera_piper_core.alltoall.placement import Placement, even_placement
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    import torch.distributed as dist

    from bench.suite import Context

PLACEMENT = Placement(((0, 3), (1, 2)))


def group_of(context: Context) -> dist.ProcessGroup:
    """The group of all ranks, which a world of several has."""
    assert context.group.data is not None
    return context.group.data


def favouring(name: str, nodes: int = 2, ranks: int = 4) -> Crossovers:
    """As if ``name`` had been measured to be fastest."""
    points = [
        (one, nodes, ranks, "uniform", 1024.0, 1e-4 if one == name else 1e-3) for one in dict.fromkeys((name, *CHOICES))
    ]
    return from_points(points, {("uniform", ranks): 1.0}, "a test")


def rows_between(world: int) -> np.ndarray[Any, Any]:
    """Uneven, with zeros."""
    return np.random.default_rng(world).integers(0, 5, (world, world))


def sent_by(rank: int, matrix: np.ndarray[Any, Any]) -> torch.Tensor:
    """Each row names its sender, its receiver, and its number."""
    rows = [(rank, receiver, number) for receiver, count in enumerate(matrix[rank]) for number in range(count)]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 3)


@pytest.mark.parametrize("name", CHOICES)
def test_rows_go_where_they_belong_there_and_back(name: str, tmp_path: Path) -> None:
    matrix = rows_between(4)

    def body(context: Context) -> tuple[str, bool]:
        rank = context.group.rank
        made = AutoAllToAll(group_of(context), PLACEMENT, profile=favouring(name), check_splits=True)
        send_splits, recv_splits = matrix[rank].tolist(), matrix[:, rank].tolist()
        send = sent_by(rank, matrix).requires_grad_()
        received = differentiable(made, send, send_splits, recv_splits)
        expected = torch.cat([sent_by(source, matrix)[sent_by(source, matrix)[:, 1] == rank] for source in range(4)])
        (received * received.detach()).sum().backward()  # type: ignore[no-untyped-call]
        # What comes back are the rows themselves.
        right = torch.equal(received, expected) and torch.equal(send.grad, send)  # type: ignore[arg-type]
        even = torch.arange(8.0).reshape(8, 1) + 100 * rank
        out = torch.empty_like(even)
        made.exchange(even, None, None, out)
        right &= out[:, 0].tolist() == [100 * source + 2 * rank + row for source in range(4) for row in range(2)]
        return made.explain(1000).algorithm, right

    assert run_world(4, body, tmp_path) == [(name, True)] * 4


@pytest.mark.parametrize("name", [name for name in CHOICES if name != "flat"])
def test_what_passes_through_is_what_the_algorithm_would_have_asked_for(name: str, tmp_path: Path) -> None:
    matrix = rows_between(4)

    def body(context: Context) -> None:
        rank = context.group.rank
        plan = make_all_to_all(name, group_of(context), PLACEMENT).plan(matrix[rank].tolist(), matrix[:, rank].tolist())
        assert transit(name, matrix, PLACEMENT, rank) == plan.transit
        assert transit(name, matrix.T, PLACEMENT, rank) == plan.reverse_transit

    run_world(4, body, tmp_path)


def test_above_the_matrix_limit_the_algorithms_count_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "MATRIX_RANKS", 3)
    matrix = rows_between(4)

    def body(context: Context) -> bool:
        rank = context.group.rank
        made = AutoAllToAll(group_of(context), PLACEMENT, profile=favouring("halo_v2"))
        plan = made.plan(matrix[rank].tolist(), matrix[:, rank].tolist())
        assert isinstance(plan, AutoPlan)
        assert plan.matrix is None
        send = sent_by(rank, matrix)
        received, back = send.new_empty((sum(matrix[:, rank]), 3)), torch.empty_like(send)
        made.run(plan, send, received)
        made.run(plan.reverse(), received, back)
        return torch.equal(back, send) and set(received[:, 1].tolist()) <= {float(rank)}

    assert run_world(4, body, tmp_path) == [True] * 4


def test_size_and_skew_decide_alike_on_all_ranks(tmp_path: Path) -> None:
    """Halo for small exchanges, flat for large ones; a rank that sends nothing must choose as the others do."""
    times = {"flat": (9e-4, 1e-3), "halo_v1": (1e-4, 9e-3)}
    points = [
        (name, 2, 4, "uniform", size, seconds)
        for name, row in times.items()
        for size, seconds in zip((1e3, 1e6), row, strict=True)
    ]
    table = from_points(points, {("uniform", 4): 1.0}, "a test")

    def body(context: Context) -> list[str]:
        rank = context.group.rank
        made = AutoAllToAll(group_of(context), PLACEMENT, profile=table if rank == 0 else None)
        used = []
        for rows in (4, 4000):
            # All of it from rank 0 to the others.
            send_splits = [0, rows, rows, rows] if rank == 0 else [0] * 4
            recv_splits = [0 if rank == 0 else rows, 0, 0, 0]
            send = torch.zeros(sum(send_splits), 64)
            plan = made.plan(send_splits, recv_splits)
            made.run(plan, send, torch.empty(sum(recv_splits), 64))
            assert isinstance(plan, AutoPlan)
            used += list(plan.inner)
        return used

    assert run_world(4, body, tmp_path) == [["halo_v1", "flat"]] * 4


def test_while_flat_serves_splits_are_gathered_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "REFRESH", 4)
    matrix = rows_between(4)

    def body(context: Context) -> list[list[bool]]:
        rank, results = context.group.rank, []
        for name in ("flat", "halo_v1"):
            made = AutoAllToAll(group_of(context), PLACEMENT, profile=favouring(name))
            gathered = []
            for _ in range(9):
                plan = made.plan(matrix[rank].tolist(), matrix[:, rank].tolist())
                assert isinstance(plan, AutoPlan)
                assert plan.mean_rows == matrix.sum() / 4
                gathered.append(plan.matrix is not None)
                made.run(plan, sent_by(rank, matrix), torch.empty(int(matrix[:, rank].sum()), 3))
            results.append(gathered)
        return results

    every_fourth = [number % 4 == 0 for number in range(9)]
    assert run_world(4, body, tmp_path) == [[every_fourth, [True] * 9]] * 4


def test_when_traffic_grows_the_choice_follows_at_the_next_gathering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then all ranks go by what they knew, and a hierarchical algorithm would count for itself."""
    monkeypatch.setattr(auto, "REFRESH", 3)
    times = {"flat": (1e-4, 9e-3), "halo_v1": (9e-4, 1e-3)}
    points = [
        (name, 2, 4, "hot_rank", size, seconds)
        for name, row in times.items()
        for size, seconds in zip((1e3, 1e6), row, strict=True)
    ]
    table = from_points(points, {("hot_rank", 4): 2.5}, "a test")

    def body(context: Context) -> list[str]:
        made, used = AutoAllToAll(group_of(context), PLACEMENT, profile=table), []
        for rows in (1, 2000, 2000, 2000, 1, 1):
            splits = [rows] * 4
            plan = made.plan(splits, splits)
            made.run(plan, torch.zeros(4 * rows, 64), torch.empty(4 * rows, 64))
            assert isinstance(plan, AutoPlan)
            used += list(plan.inner)
        return used

    expected = ["flat", "flat", "flat", "halo_v1", "flat", "flat"]
    assert run_world(4, body, tmp_path) == [expected] * 4


def test_without_a_profile_it_measures_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SIZES", (1024, 8192))
    monkeypatch.setattr(calibration, "ROUNDS", 2)
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 2)

    def body(context: Context) -> tuple[list[tuple[str, str, list[float]]], bool]:
        first = AutoAllToAll(group_of(context), even_placement(4, 2))
        # A profile of another placement says nothing here.
        again = AutoAllToAll(group_of(context), even_placement(4, 2), profile=favouring("flat", 16, 64))
        curves = first.crossovers.curves
        return [(one.algorithm, one.traffic, one.seconds.seconds.tolist()) for one in curves], (
            first.crossovers is again.crossovers
        )

    results = run_world(4, body, tmp_path)
    assert all(result == results[0] for result in results)
    curves, same = results[0]
    assert same
    assert {(name, traffic) for name, traffic, _ in curves} == {
        (name, traffic) for name in CHOICES for traffic in calibration.TRAFFIC
    }
    assert all(0 < seconds < 5 for _, _, row in curves for seconds in row)


@pytest.mark.parametrize("placement", [even_placement(4, 4), even_placement(4, 1), Placement(((0, 1, 2), (3,)))])
def test_where_only_flat_is_possible_nothing_is_measured(placement: Placement, tmp_path: Path) -> None:
    def body(context: Context) -> tuple[str, int]:
        made = AutoAllToAll(group_of(context), placement)
        assert made.fallback_reason is not None
        return made.explain(1e6).reason, len(made.crossovers.curves)

    reason, curves = run_world(4, body, tmp_path)[0]
    assert reason.startswith("flat: ")
    assert curves == 0


def test_a_profile_that_cannot_be_read_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        # Only rank 0 reads it.
        path = tmp_path / "gone.json" if context.group.rank == 0 else None
        with pytest.raises(ValueError, match="cannot read profile"):
            AutoAllToAll(group_of(context), PLACEMENT, profile=path)

    run_world(4, body, tmp_path)


def test_auto_by_name(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        return make_all_to_all("auto", group_of(context), PLACEMENT, profile=favouring("two_phase")).name

    assert run_world(4, body, tmp_path) == ["auto"] * 4
