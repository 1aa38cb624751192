"""nvbench's JSON: tagged summaries, samples beside it or not, skipped states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.importers.contents import Source
from bench.importers.nvbench import read as read_json

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).resolve().parents[2] / "data" / "imports" / "nvbench" / "made.json"


def test_samples_beside_the_file(read: Callable) -> None:
    found = read("nvbench", "made.json")
    assert found.faults == []
    row = found.of("gpu_time", BlockSize=256)
    assert row.samples == pytest.approx([1.25e-3, 1.5e-3, 1.0e-3, 1.75e-3, 2.0e-3])
    assert (row.value, row.unit, row.definition) == (pytest.approx(1.5e-3), "s", "time/nvbench-median-v1")
    assert row.params == {"benchmark": "copy", "BlockSize": 256, "T": "I32"}
    assert found.of("bandwidth", BlockSize=256).value == pytest.approx(2500)
    assert found.of("bandwidth_share", BlockSize=256).value == 0.52
    assert found.of("items_rate", BlockSize=256).value == 2.5e9
    assert found.of("batch_gpu_time", BlockSize=256).value == 1.1e-3
    assert found.of("cpu_time", BlockSize=256).definition == "time/nvbench-mean-v1"
    own = found.of("FLOP/s", BlockSize=256)
    assert (own.value, own.better, own.params["unit"]) == (3.5e12, "unknown", "1/s")
    assert found.contents.identity["gpus"][0]["name"] == "NVIDIA H200"


def test_summaries_stand_for_samples_that_are_not_there(read: Callable) -> None:
    found = read("nvbench", text=FILE.read_text())
    row = found.of("gpu_time", BlockSize=256)
    assert (row.samples, row.n, row.value, row.definition) == ([], 5, 1.5e-3, "time/nvbench-median-v1")
    old = found.of("gpu_time", BlockSize=512)
    assert (old.n, old.value, old.definition) == (7, 2e-3, "time/nvbench-mean-v1")
    assert found.faults == []
    assert any("are not beside the file" in note for note in found.contents.notes)


def test_a_skipped_state_keeps_its_reason_as_text(read: Callable) -> None:
    row = read("nvbench", "made.json").of("gpu_time", BlockSize=1024)
    assert (row.status, row.reason) == ("skipped", "Too large for <this> device.")


def test_a_sample_file_of_another_length_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "made.json-bin").mkdir()
    (tmp_path / "made.json-bin" / "0.bin").write_bytes(b"\0" * 8)
    contents = read_json(Source("made.json", FILE.read_text(), tmp_path / "made.json"))
    assert any("2 samples where 5 are announced" in fault.what for fault in contents.faults)


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret/0.bin", "a/../../0.bin", "0.bin"])
def test_a_file_cannot_make_us_read_another_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "0.bin").write_bytes(b"\0" * 20)
    (tmp_path / "0.bin").write_bytes(b"\0" * 20)
    folder = tmp_path / "results"
    folder.mkdir()
    contents = read_json(Source("x", FILE.read_text().replace("out/made.json-bin/0.bin", name), folder / "x.json"))
    assert all(row.samples == [] for row in contents.rows if row.metric == "gpu_time")


@pytest.mark.parametrize("text", ["{}", '{"benchmarks": [3]}', '{"benchmarks": [{"states": [4, {}]}]}'])
def test_files_without_a_state(read: Callable, text: str) -> None:
    assert read("nvbench", text=text).faults
