"""Text to learn from: files of the user's, or what every machine has, the sources of Python's standard library."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

BYTES = 256
"""Tokens of a corpus without tokenizer."""

VALIDATION_PART = 10
"""One file in so many is for validation."""

LARGE_BYTES = 256 * 1024
"""A larger file is for training while there are others: one of them would be most of the validation part."""

LEFT_OUT = frozenset({"__pycache__", "encodings", "ensurepip", "idlelib", "lib2to3", "test", "tests", "turtledemo"})
"""Folders of the standard library that not every installation has, or that are tables and no text."""


@dataclass(frozen=True)
class Corpus:
    """A tokenised text in two parts.

    Attributes:
        train, validation: one-dimensional; uint8 for bytes, int32 for a tokenizer's numbers. No file is in
            both, unless there is but one.
        vocab: tokens are below it.
        source: where it is from, for people.

    Raises:
        ValueError: a part is empty, or has a token that is not below ``vocab``.
    """

    train: Tensor
    validation: Tensor
    vocab: int
    source: str

    def __post_init__(self) -> None:
        for what, text in (("training", self.train), ("validation", self.validation)):
            if text.dim() != 1 or not len(text):
                raise ValueError(f"the {what} part of {self.source} is empty")
            if int(text.min()) < 0 or int(text.max()) >= self.vocab:
                raise ValueError(f"{self.source} has tokens outside of 0 to {self.vocab - 1}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of both parts, in hexadecimal: two runs with the same digest read the same text."""
        digest = hashlib.sha256()
        for text in (self.train, self.validation):
            digest.update(len(text).to_bytes(8, "little"))
            digest.update(text.numpy().tobytes())
        return digest.hexdigest()

    def unigram_entropy(self) -> float:
        """Entropy of the validation part's own frequencies, nats a token (a byte, without tokenizer).

        No guess that knows nothing but how often each token is there has a smaller loss: a model below it
        has learnt something of the order of text.
        """
        counts = torch.bincount(self.validation.to(torch.int64), minlength=self.vocab).double()
        shares = counts[counts > 0] / len(self.validation)
        return float(-(shares * shares.log()).sum())


def standard_library() -> Corpus:
    """Sources and documentation of Python's standard library, byte by byte; the same wherever the same Python is.

    Raises:
        ValueError: this installation has no sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    modules = [entry for entry in root.iterdir() if entry.name.removesuffix(".py") in sys.stdlib_module_names]
    files = [file for entry in modules for file in (entry.rglob("*.py") if entry.is_dir() else [entry])]
    kept = [file for file in files if LEFT_OUT.isdisjoint(file.relative_to(root).parts)]
    version = ".".join(map(str, sys.version_info[:3]))
    return _corpus(_read(kept, root), f"the standard library of Python {version}", None, BYTES)


def from_files(
    paths: Sequence[Path], *, encode: Callable[[str], Sequence[int]] | None = None, vocab: int = BYTES
) -> Corpus:
    """A corpus of files, or of all files in folders (without hidden ones).

    A tenth of the files, chosen by hashes of their names, is for validation; of a single file, its last tenth.

    Args:
        encode: from a file's text (UTF-8; what is not is replaced) to tokens; None for its bytes.
        vocab: tokens of ``encode``.

    Raises:
        ValueError: no such file, or no text in them.
    """
    found: dict[str, bytes] = {}
    for path in paths:
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path))]
            found |= {f"{path.name}/{name}": text for name, text in _read(files, path).items()}
        elif path.is_file():
            found |= _read([path], path.parent)
        else:
            raise ValueError(f"no file or folder {str(path)!r} to learn from")
    source = ", ".join(str(path) for path in paths) or "no files"
    return _corpus(found, source if len(source) <= 100 else f"{len(found)} files", encode, vocab)


def _read(files: Iterable[Path], root: Path) -> dict[str, bytes]:
    """Texts by name within ``root``, without empty files."""
    texts = {file.relative_to(root).as_posix(): file.read_bytes() for file in files}
    return {name: text for name, text in texts.items() if text}


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _corpus(texts: dict[str, bytes], source: str, encode: Callable[[str], Sequence[int]] | None, vocab: int) -> Corpus:
    if not texts:
        raise ValueError(f"{source}: no text to learn from")
    # By hashes of names: the order in which a file system lists them does not matter. Large files come last.
    names = sorted(texts, key=lambda name: (len(texts[name]) > LARGE_BYTES, hashlib.sha256(name.encode()).digest()))
    tokens = [_tokens(texts[name], encode) for name in names]
    if len(tokens) == 1:
        held = max(1, len(tokens[0]) // VALIDATION_PART)
        tokens = [tokens[0][-held:], tokens[0][:-held]]
    count = max(1, len(tokens) // VALIDATION_PART)
    return Corpus(torch.cat(tokens[count:]), torch.cat(tokens[:count]), vocab, source)


def _tokens(text: bytes, encode: Callable[[str], Sequence[int]] | None) -> Tensor:
    if encode is None:
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return torch.tensor(list(encode(text.decode("utf-8", errors="replace"))), dtype=torch.int32)
