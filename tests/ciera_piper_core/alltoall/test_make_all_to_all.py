"""Making all-to-all algorithms by name."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ciera_piper_core.alltoall import ALGORITHMS, make_all_to_all
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_every_name_makes_an_algorithm(tmp_path: Path) -> None:
    def body(context: Context) -> list[str]:
        assert context.group.data is not None
        return [type(make_all_to_all(name, context.group.data)).__name__ for name in ALGORITHMS]

    assert run_world(2, body, tmp_path) == [["FlatAllToAll"]] * 2


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        with pytest.raises(ValueError, match="unknown all-to-all algorithm 'halo9'; known: flat"):
            make_all_to_all("halo9", context.group.data)

    run_world(2, body, tmp_path)


def test_names_are_known_without_torch() -> None:
    code = "import ciera_piper_core.alltoall, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
