"""A tokenizer from its ``tokenizer.json``, for corpora of another vocabulary than bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Tokenizer:
    """What ``corpus.from_files`` takes: ``encode`` and ``vocab``.

    Attributes:
        vocab: above every token, special ones included.

    Raises:
        ImportError: package ``tokenizers`` is missing.
        ValueError: the file cannot be read as a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        """Read ``tokenizer.json``, or the one in a folder."""
        try:
            from tokenizers import Tokenizer as Library
        except ImportError:
            raise ImportError("a tokenizer needs the package tokenizers: pip install tokenizers") from None
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer: Any = Library.from_file(str(file))
        except Exception as error:  # the library raises bare ones
            raise ValueError(f"{file} cannot be read as a tokenizer: {error}") from None
        # Not its size: numbers may have gaps.
        self.vocab = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> Sequence[int]:
        """Numbers of a text's tokens; none are added at its ends."""
        numbers: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return numbers
