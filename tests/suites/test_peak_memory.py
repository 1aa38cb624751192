"""Peak memory since a moment: what was held for a while counts, what was held before does not."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from suites.peak_memory import CLEAR, PeakMemory

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not CLEAR.exists(), reason="needs Linux's /proc")


def hold(size: int) -> mmap.mmap:
    """Memory that is given back to the kernel when it is closed."""
    memory = mmap.mmap(-1, size)
    for place in range(0, size, mmap.PAGESIZE):
        memory[place] = 1
    return memory


def test_what_was_held_for_a_while_counts_and_what_was_held_before_does_not() -> None:
    before = hold(64 * MIB)
    watched = PeakMemory("cpu")
    hold(40 * MIB).close()
    peak = watched.added_bytes
    before.close()
    assert 36 * MIB < peak < 60 * MIB


def test_an_earlier_peak_is_forgotten() -> None:
    hold(80 * MIB).close()
    try:
        Path(CLEAR).write_text("5")
    except OSError:
        pytest.skip("the kernel does not let this process forget its peak")
    assert PeakMemory("cpu").added_bytes < 20 * MIB
