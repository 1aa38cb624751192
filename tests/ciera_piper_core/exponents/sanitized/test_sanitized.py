"""The C kernels under AddressSanitizer and UBSan: every function, level, size and placement, no byte beside."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.ciera_piper_core.exponents.sanitized.build import ENVIRONMENT, built, run

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = {
    "read before": "SEGV",
    "read behind": "SEGV",
    "read behind on heap": "heap-buffer-overflow",
    "write beside": "byte 100 from its start was written",
    "write before": "byte -3 from its start was written",
    "signed overflow": "signed integer overflow",
    "misaligned": "misaligned address",
    "masked store": "SEGV",
    "streaming store": "SEGV",
}
"""By mistake, what must be said of it."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("drive_faults", None, tmp_path_factory.mktemp("faults"))


def test_no_fault_is_none(faults: Path) -> None:
    assert run(faults, "none") == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen(faults: Path, fault: str) -> None:
    """What passes below would mean nothing if these did."""
    done = subprocess.run([str(faults), fault], capture_output=True, text=True, timeout=30, env=ENVIRONMENT)
    if done.returncode == 3:
        pytest.skip("this processor lacks the instruction")
    assert done.returncode != 0
    assert FAULTS[fault] in done.stderr


@pytest.mark.slow
def test_planes(tmp_path: Path) -> None:
    assert "rounds at levels 0 to" in run(built("drive_planes", "_planes", tmp_path))
