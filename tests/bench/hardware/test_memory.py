"""Memory: the same machine gives the same size, and what is available is what can be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.hardware.memory import GIB, available_memory_bytes, installed_gib, total_memory_gib

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = [4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096]


@given(st.sampled_from(INSTALLED), st.floats(0.001, 0.03))
def test_what_the_kernel_keeps_for_itself_does_not_show(installed: int, share: float) -> None:
    assert installed_gib(int(installed * GIB * (1 - share))) == installed


@given(st.integers(1, 2**46))
def test_never_less_than_is_counted_nor_much_more(counted: int) -> None:
    gib = installed_gib(counted)
    assert counted <= gib * GIB <= max(GIB, counted * 1.0625 + GIB)


def test_available_memory_of_a_node(hgx: Path) -> None:
    assert total_memory_gib(hgx) == 2048
    assert available_memory_bytes(hgx) == 2_000_000_000 * 1024


def test_this_machine() -> None:
    memory = psutil.virtual_memory()
    assert available_memory_bytes() <= memory.total
    assert total_memory_gib() * GIB == pytest.approx(memory.total, rel=0.13)
