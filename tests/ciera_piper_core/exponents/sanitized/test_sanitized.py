"""The C kernels under AddressSanitizer and UBSan: every function, level, size and placement, no byte beside."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.ciera_piper_core.exponents.sanitized.build import ENVIRONMENT, NO_LEAK_SEARCH, built, run

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = {
    "read before": "SEGV",
    "read behind": "SEGV",
    "read behind on heap": "heap-buffer-overflow",
    "write beside": "slot 0: byte 100 from its start was written",
    "write before": "slot 1: byte -3 from its start was written",
    "leak": "detected memory leaks",
    "signed overflow": "signed integer overflow",
    "misaligned": "misaligned address",
    "masked store": "SEGV",
    "streaming store": "SEGV",
}
"""By mistake, what must be said of it."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("drive_faults", tmp_path_factory.mktemp("faults"), alone=True)


def test_no_fault_is_none(faults: Path) -> None:
    assert run(faults, "none") == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen(faults: Path, fault: str) -> None:
    """What passes below would mean nothing if these did."""
    done = subprocess.run([str(faults), fault], capture_output=True, text=True, timeout=30, env=ENVIRONMENT)
    if done.returncode == 3:
        pytest.skip("this processor lacks the instruction")
    if NO_LEAK_SEARCH in done.stderr:
        pytest.skip("leaks cannot be looked for here: attaching to a process is forbidden")
    assert done.returncode != 0
    assert FAULTS[fault] in done.stderr


@pytest.mark.slow
def test_planes(tmp_path: Path) -> None:
    assert "rounds at levels 0 to" in run(built("drive_planes", tmp_path))


@pytest.mark.slow
def test_rans(tmp_path: Path) -> None:
    assert "rounds at levels 0 to" in run(built("drive_rans", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fuzzer", "streams", "least_refused"), [("fuzz_rans", 4000, 3400), ("fuzz_rans_streams", 6000, 4000)]
)
def test_rans_decoder_on_bytes_that_nobody_coded(fuzzer: str, streams: int, least_refused: int, tmp_path: Path) -> None:
    """Of changes in chunks, states and counts most show; changed escapes or names of symbols only in a checksum."""
    program = built(fuzzer, tmp_path)
    for seed in (1, 2026):
        printed = run(program, str(streams), str(seed))
        assert int(re.findall(r"(\d+) refused", printed)[0]) > least_refused, printed


@pytest.mark.slow
def test_whole_shards(tmp_path: Path) -> None:
    """Changes that fall into plain segments, unused bits of codes or padding are no fault of a coded segment."""
    program = built("fuzz_segments", tmp_path)
    for seed in (1, 2026):
        printed = run(program, "150", str(seed))
        changed, refused = map(int, re.findall(r"changed (\d+) times: (\d+) refused", printed)[0])
        assert refused > 0.6 * changed, printed
