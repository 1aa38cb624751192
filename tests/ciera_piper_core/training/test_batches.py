"""Tests of batches: a function of seed and step, pieces of the right text, validation that covers its text once."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.training.batches import Batches, share
from ciera_piper_core.training.corpus import Corpus
from tests.ciera_piper_core.training.small_recipe import small_recipe

CORPUS = Corpus(
    (torch.arange(1000) % 200).to(torch.uint8), (torch.arange(200, 240).repeat(10)).to(torch.uint8), 256, "numbers"
)


def make(**settings: int) -> Batches:
    return Batches(CORPUS, small_recipe(**{"sequence": 16, "global_batch": 4} | settings))


def test_a_batch_is_pieces_of_the_training_text() -> None:
    batch = make().batch(3)
    assert batch.shape == (4, 17)
    assert batch.dtype == torch.int64
    assert ((batch[:, 1:] - batch[:, :-1]) % 200 == 1).all()


def test_a_batch_follows_from_seed_and_step_alone() -> None:
    one, other = make(), make()
    one.batch(0)
    assert torch.equal(one.batch(7), other.batch(7))
    assert not torch.equal(one.batch(7), one.batch(8))
    assert not torch.equal(one.batch(7), make(seed=1).batch(7))


def test_every_place_of_the_training_text_may_come() -> None:
    batches = make(global_batch=512)
    starts = torch.cat([batches.batch(step)[:, 0] for step in range(4)])
    assert set(starts.tolist()) == set(range(200))
    short = Batches(
        Corpus(torch.arange(17).to(torch.uint8), CORPUS.validation, 256, "short"), small_recipe(sequence=16)
    )
    assert short.batch(0)[0].tolist() == list(range(17))


def test_validation_covers_its_text_once_before_it_begins_again() -> None:
    batches = make()
    pieces = (len(CORPUS.validation) - 1) // 16
    assert pieces == 24
    seen = torch.cat([batches.validation(index) for index in range(6)])
    text = CORPUS.validation.long()
    expected = torch.stack([text[16 * piece : 16 * piece + 17] for piece in range(pieces)])
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, expected.tolist()))
    assert torch.equal(batches.validation(6), batches.validation(0))
    assert torch.equal(batches.validation(2), make(seed=9).validation(2))


def test_shares_of_ranks_are_the_batch_in_order() -> None:
    batch = make().batch(0)
    assert torch.equal(torch.cat([share(batch, rank, 2) for rank in range(2)]), batch)
    with pytest.raises(ValueError, match="a batch of 4 sequences does not divide over 3 data ranks"):
        share(batch, 0, 3)


def test_a_vocabulary_or_text_that_does_not_fit_is_refused() -> None:
    words = Corpus(CORPUS.train, CORPUS.validation, 5000, "words")
    with pytest.raises(ValueError, match=r"words has 5000 tokens, but the model's vocabulary is 256; .* vocab=5000"):
        Batches(words, small_recipe())
    with pytest.raises(
        ValueError, match="the validation part of numbers has 400 tokens, which make no sequence of 400"
    ):
        make(sequence=400)
