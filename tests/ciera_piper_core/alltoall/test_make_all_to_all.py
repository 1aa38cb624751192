"""Making all-to-all algorithms by name."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ciera_piper_core.alltoall import ALGORITHMS, make_all_to_all
from ciera_piper_core.alltoall.placement import even_placement
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_every_name_makes_an_algorithm(tmp_path: Path) -> None:
    def body(context: Context) -> list[tuple[str, str | None]]:
        assert context.group.data is not None
        # Ranks of one host share a node, which they find out themselves; there all go flat.
        made = [make_all_to_all(name, context.group.data) for name in ALGORITHMS]
        return [(algorithm.name, algorithm.fallback_reason) for algorithm in made]

    for names in run_world(2, body, tmp_path):
        assert [name for name, _ in names] == list(ALGORITHMS)
        assert [reason for _, reason in names if reason] == [
            "all ranks share one node, so there is no network to spare"
        ] * (len(ALGORITHMS) - 1)


def test_a_placement_can_be_given(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        for name in ALGORITHMS[1:-1]:
            algorithm = make_all_to_all(name, context.group.data, even_placement(4, 2))
            assert algorithm.fallback_reason is None
        with pytest.raises(ValueError, match="a placement of 6 ranks for a group of 4"):
            make_all_to_all("halo_v0", context.group.data, even_placement(6, 2))

    run_world(4, body, tmp_path)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        with pytest.raises(ValueError, match="unknown all-to-all algorithm 'halo9'; known: flat, two_phase, halo_v0"):
            make_all_to_all("halo9", context.group.data)

    run_world(2, body, tmp_path)


def test_names_are_known_without_torch() -> None:
    code = "import ciera_piper_core.alltoall, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
