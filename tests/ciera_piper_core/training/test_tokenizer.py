"""Tests of tokenizers from files, with one that is made here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ciera_piper_core.training.corpus import from_files
from ciera_piper_core.training.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def write_tokenizer(folder: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "one": 1, "two": 2, "three": 300}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    return folder


def test_a_corpus_of_its_tokens(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer")
    tokenizer = Tokenizer(folder)
    assert tokenizer.vocab == 301, "numbers have a gap"
    assert list(tokenizer.encode("two one four three")) == [2, 1, 0, 300]
    assert list(Tokenizer(folder / "tokenizer.json").encode("two")) == [2]
    (tmp_path / "text").write_text("one two " * 20, encoding="utf-8")
    text = from_files([tmp_path / "text"], encode=tokenizer.encode, vocab=tokenizer.vocab)
    assert (len(text.train), len(text.validation)) == (36, 4)


def test_another_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Tokenizer(tmp_path)
