"""Real weights: files that the safetensors package writes are read alike, broken ones are refused, one is found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from bench.errors import UsageError
from suites import model_file
from suites.model_file import FILE_VARIABLE, find_model_file, read_weights

if TYPE_CHECKING:
    from pathlib import Path

TENSORS = {
    "embedding": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "bf16": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
    "fp16": torch.tensor([[65504.0]], dtype=torch.float16),
    "positions": torch.arange(5),
    "empty": torch.empty(0, 3),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def test_floating_point_tensors_come_back_bit_for_bit(file: Path) -> None:
    found = {weights.dtype: weights for weights in read_weights(file)}
    assert set(found) == {torch.float32, torch.bfloat16, torch.float16}
    for name in ("embedding", "bf16", "fp16"):
        expected = TENSORS[name].reshape(-1)
        assert torch.equal(found[expected.dtype].view(torch.uint8), expected.view(torch.uint8))


def test_a_file_that_is_cut_off_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"model\.safetensors is cut off: it needs [\d,]+ bytes, and has [\d,]+"):
        list(read_weights(file))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"nope",
        (24).to_bytes(8, "little") + json.dumps({"a": {"dtype": "F32"}}).ljust(24).encode(),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.bin"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"other\.bin is no safetensors file"):
        list(read_weights(path))


def test_ones_own_file_comes_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    found = find_model_file()
    assert found is not None
    assert (found.path, found.name) == (file, "model")


def test_a_name_of_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"BENCH_WEIGHTS names .*none', which is no file"):
        find_model_file()


def test_a_package_that_ships_a_model_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setattr(model_file, "PACKAGE", "a_package_with_a_model")
    assert find_model_file() is None
    package = tmp_path / "a_package_with_a_model"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model_file() is None, "the package is there, its model is not"
    save_file({"weights": torch.ones(3)}, package / "model" / "model.safetensors")
    found = find_model_file()
    assert found is not None
    assert found.name == "all-minilm-l6-v2"
    (weights,) = read_weights(found.path)
    assert weights.tolist() == [1, 1, 1]
