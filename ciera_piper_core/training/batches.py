"""The batches of a training run: which pieces of the corpus a step learns from, the same on every rank."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ciera_piper_core.training.corpus import Corpus
    from ciera_piper_core.training.recipe import Recipe


class Batches:
    """Batches of one corpus for one recipe. A batch is a function of its number: resuming needs no state.

    Attributes:
        corpus, recipe: as given.

    Raises:
        ValueError: the model's vocabulary is smaller than the corpus's, or a part of the corpus is shorter
            than a sequence.
    """

    def __init__(self, corpus: Corpus, recipe: Recipe) -> None:
        self.corpus, self.recipe = corpus, recipe
        if recipe.architecture.vocab < corpus.vocab:
            raise ValueError(
                f"{corpus.source} has {corpus.vocab} tokens, but the model's vocabulary is"
                f" {recipe.architecture.vocab}; scale the model with vocab={corpus.vocab}"
            )
        for what, text in (("training", corpus.train), ("validation", corpus.validation)):
            if len(text) <= recipe.sequence:
                raise ValueError(
                    f"the {what} part of {corpus.source} has {len(text)} tokens, which make no sequence of"
                    f" {recipe.sequence} and its next token; give more text"
                )

    def batch(self, step: int) -> Tensor:
        """``(global_batch, sequence + 1)``, int64: pieces that begin anywhere in the training text."""
        digest = hashlib.sha256(f"batch/{self.recipe.seed}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        last = len(self.corpus.train) - self.recipe.sequence
        return self._pieces(self.corpus.train, torch.randint(last, (self.recipe.global_batch,), generator=generator))

    def validation(self, index: int) -> Tensor:
        """``(global_batch, sequence + 1)``, int64: pieces that cover the validation text once, then again.

        They come mixed, so that already the first batch is of many files; the same for every seed.
        """
        sequence, batch = self.recipe.sequence, self.recipe.global_batch
        pieces = (len(self.corpus.validation) - 1) // sequence
        order = torch.randperm(pieces, generator=torch.Generator().manual_seed(0))
        return self._pieces(self.corpus.validation, order[(index * batch + torch.arange(batch)) % pieces] * sequence)

    def _pieces(self, text: Tensor, starts: Tensor) -> Tensor:
        return text[starts[:, None] + torch.arange(self.recipe.sequence + 1)].to(torch.int64)


def share(batch: Tensor, rank: int, width: int) -> Tensor:
    """The sequences ``[rank * n, (rank + 1) * n)`` of a batch for one of ``width`` data ranks, ``n`` of them each.

    Raises:
        ValueError: they do not come out whole.
    """
    if len(batch) % width:
        raise ValueError(f"a batch of {len(batch)} sequences does not divide over {width} data ranks")
    each = len(batch) // width
    return batch[rank * each : (rank + 1) * each]
