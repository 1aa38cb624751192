"""Tests of the memory model as a whole: what it offers, and that it needs no torch."""

from __future__ import annotations

import subprocess
import sys

from ciera_piper_core.planner import memory


def test_every_name_is_there() -> None:
    assert all(hasattr(memory, name) for name in memory.__all__)


def test_neither_memory_nor_flops_load_torch() -> None:
    # Importing torch takes two seconds, which the command does not have.
    code = (
        "import sys, ciera_piper_core.planner.memory, ciera_piper_core.models.flops; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
