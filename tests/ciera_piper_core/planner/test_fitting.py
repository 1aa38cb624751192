"""The smallest number of GPUs: found without a full search, and never smaller than one finds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner import fitting
from ciera_piper_core.planner.fitting import Smallest, fits, gpu_counts, least_state_bytes, smallest_gpus
from ciera_piper_core.planner.search import search
from ciera_piper_core.planner.strategy import Question
from ciera_piper_core.platforms import load_platform


def question_of(model: str, gpus: int, **settings: Any) -> Question:
    return Question(catalogue.load(model), load_platform("frontier"), gpus, **settings)


@pytest.mark.parametrize("model", ["olmoe-1b-7b", "mixtral-8x7b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("settings", [{}, {"sequences_per_gpu": 1}, {"only": {"schedule": ("gpipe",)}}])
def test_fits_says_what_the_search_finds(model: str, settings: dict[str, Any]) -> None:
    for gpus in (1, 2, 3, 4, 8, 16, 24):
        question = question_of(model, gpus, **settings)
        assert fits(question) == (len(search(question)) > 0), gpus


def test_the_smallest_is_the_first_that_fits() -> None:
    question = question_of("mixtral-8x7b", 64)
    found = smallest_gpus(question, 1, 64)
    assert found is not None
    smallest = found.gpus
    assert found.exact
    assert len(search(replace(question, gpus=smallest))) > 0
    assert not any(fits(replace(question, gpus=gpus)) for gpus in gpu_counts(8, 1, 64) if gpus < smallest)
    assert least_state_bytes(replace(question, gpus=smallest)) < 64e9


def test_a_model_that_fits_nowhere() -> None:
    assert smallest_gpus(question_of("deepseek-v3", 64, sequence=1 << 24), 1, 512) is None


def test_the_smallest_is_the_first_of_all_whole_nodes() -> None:
    """336 lies between two of the numbers that are tried first."""
    question = question_of("kimi-k2", 64)
    assert 336 not in gpu_counts(8, 1, 78_848)
    found = smallest_gpus(question, 1, 78_848)
    assert found == Smallest(336, exact=True)
    assert str(found) == "336"
    assert fits(replace(question, gpus=336))
    assert not any(fits(replace(question, gpus=gpus)) for gpus in range(8, 336, 8))


def test_with_too_many_numbers_to_try_the_smallest_is_an_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_TRIES", 1)
    found = smallest_gpus(question_of("kimi-k2", 64), 1, 78_848)
    assert found is not None
    assert not found.exact
    assert found.gpus >= 336
    assert str(found) == f"at most {found.gpus}"


def test_counts_are_whole_nodes_beyond_one_and_grow_sparse() -> None:
    counts = gpu_counts(8, 3, 5000)
    assert counts[:8] == [3, 4, 5, 6, 7, 8, 16, 24]
    assert counts[-1] == 5000
    assert all(count % 8 == 0 for count in counts if 8 < count < 5000)
    assert all(count in counts for count in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096))
    assert max(later / earlier for earlier, later in itertools.pairwise(counts[5:])) <= 2
    assert len(gpu_counts(8, 1, 80_000)) < 120
    assert gpu_counts(8, 6, 6) == [6]
