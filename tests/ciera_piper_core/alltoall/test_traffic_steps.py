"""Traffic in steps: the rotating hot rank, replays, and skew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ciera_piper_core.alltoall import ROTATING, TRAFFIC_KINDS, known_traffic
from ciera_piper_core.alltoall.traffic import traffic_matrix
from ciera_piper_core.alltoall.traffic_steps import skew, traffic_steps

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", TRAFFIC_KINDS)
def test_steady_kinds_have_one_step(kind: str) -> None:
    steps = traffic_steps(kind, 5, 100, 3)
    assert steps.shape == (1, 5, 5)
    assert np.array_equal(steps[0], traffic_matrix(kind, 5, 100, 3))  # type: ignore[arg-type]


def test_the_hot_rank_moves_on_by_one() -> None:
    steps = traffic_steps(ROTATING, 6, 1001, 7)
    hot = steps.sum(axis=1).argmax(axis=1)
    assert ((np.diff(hot) % 6) == 1).all()
    assert sorted(hot) == list(range(6))
    assert (steps.sum(axis=2) == 1001).all()
    assert len({skew(step) for step in steps}) == 1
    assert len(traffic_steps(ROTATING, 40, 1001, 7)) == 16


def test_a_replay_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"counts": [3, 1]}\n{"counts": [0, 1]}\n')
    assert traffic_steps(f"replay:{path}", 2, 4, 0).tolist() == [[[3, 1], [3, 1]], [[0, 4], [0, 4]]]


@pytest.mark.parametrize(
    ("text", "known"),
    [("uniform", True), (ROTATING, True), ("replay:x", True), ("replay:", False), ("replay", False), ("", False)],
)
def test_names(text: str, known: bool) -> None:
    assert known_traffic(text) == known


def test_skew_is_the_busiest_rank_over_the_mean() -> None:
    assert skew(np.full((4, 4), 3)) == 1
    assert skew(np.zeros((2, 2), dtype=np.int64)) == 1
    # All send 8 of which 5 go to rank 0: it receives 10, the mean is 8.
    assert skew(np.array([[5, 3], [5, 3]])) == 10 / 8
    # Rank 0 sends all there is.
    assert skew(np.array([[0, 6], [0, 0]])) == 2
