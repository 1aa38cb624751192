"""Tests of text to learn from: the default's, users' files, the split by files, and its entropy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.training import corpus as module
from ciera_piper_core.training.corpus import Corpus, from_files, standard_library

if TYPE_CHECKING:
    from pathlib import Path


def as_bytes(text: torch.Tensor) -> bytes:
    return bytes(text.tolist())


def test_the_standard_library_is_the_same_each_time_and_in_two_parts() -> None:
    first, second = standard_library(), standard_library()
    assert first.digest == second.digest
    assert first.vocab == 256
    assert first.train.dtype == torch.uint8
    assert len(first.train) > 10 * len(first.validation) > 10 * 200_000
    assert "standard library of Python 3" in first.source
    validation = as_bytes(first.validation)
    assert as_bytes(first.train).count(validation[:200]) == 0
    assert b"def " in validation


def test_entropy_is_that_of_the_validation_parts_frequencies() -> None:
    text = Corpus(torch.zeros(3, dtype=torch.uint8), torch.tensor([1, 1, 2, 3], dtype=torch.uint8), 4, "given")
    expected = 0.5 * math.log(2) + 0.5 * math.log(4)
    assert text.unigram_entropy() == pytest.approx(expected)
    assert 3.0 < standard_library().unigram_entropy() < 3.3, "of English and code, in nats a byte"


def write(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"<{name}>".encode() * 3)


def test_a_file_is_in_one_part_only(tmp_path: Path) -> None:
    names = [f"{number}.txt" for number in range(25)] + ["below/deep.txt"]
    write(tmp_path, [*names, ".hidden/no.txt", "below/.no.txt"])
    (tmp_path / "empty.txt").touch()
    text = from_files([tmp_path])
    train, validation = as_bytes(text.train), as_bytes(text.validation)
    held = [name for name in names if f"<{name}>".encode() in validation]
    assert len(held) == 2
    assert all((f"<{name}>".encode() in train) == (name not in held) for name in names)
    assert b"no.txt" not in train + validation


def test_order_and_place_of_files_do_not_matter(tmp_path: Path) -> None:
    names = [f"{number}.txt" for number in range(12)]
    write(tmp_path / "a" / "text", names)
    write(tmp_path / "b" / "text", names[::-1])
    assert from_files([tmp_path / "a" / "text"]).digest == from_files([tmp_path / "b" / "text"]).digest


def test_a_large_file_is_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 100)
    for number in range(8):
        folder = tmp_path / str(number)
        write(folder, ["few.txt", "many.txt"])
        (folder / f"large{number}.txt").write_bytes(b"x" * 101)
        assert b"x" * 101 in as_bytes(from_files([folder]).train)


def test_of_a_single_file_the_end_is_for_validation(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(bytes(range(100)))
    text = from_files([tmp_path / "one.txt"])
    assert text.train.tolist() == list(range(90))
    assert text.validation.tolist() == list(range(90, 100))


def test_tokens_of_an_encoder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("seven words are in this very file " * 4, encoding="utf-8")
    (tmp_path / "b").write_bytes(b"others \xff here")
    text = from_files([tmp_path], encode=lambda line: [300 + len(word) for word in line.split()], vocab=320)
    assert text.vocab == 320
    assert text.train.dtype == torch.int32
    assert sorted([len(text.train), len(text.validation)]) == [3, 28]
    with pytest.raises(ValueError, match="has tokens outside of 0 to 255"):
        from_files([tmp_path], encode=lambda line: [300])


def test_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text to learn from"):
        from_files([tmp_path])
    with pytest.raises(ValueError, match="no file or folder"):
        from_files([tmp_path / "absent"])
    with pytest.raises(ValueError, match="the validation part of nothing is empty"):
        Corpus(torch.zeros(1, dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8), 256, "nothing")
