"""Samples of the proofs: their size, their order, and the noise that they claim."""

from __future__ import annotations

import numpy as np
import pytest

from bench.errors import UsageError
from bench.stats.proof_noise import KINDS, Source, mixed_kinds, plain_kinds
from bench.stats.serial import lag_correlation


def source(design: str, kind: str, cases: int = 400, samples: int = 30, differ: bool = False) -> Source:
    return Source(design, np.full(cases, KINDS.index(kind)), 0.02, samples, differ)  # type: ignore[arg-type]


@pytest.mark.parametrize("design", ["interleaved", "rounds", "runs"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_have_the_same_noise(design: str, kind: str) -> None:
    one = source(design, kind)
    baseline, candidate = one.measure(np.random.default_rng(1), np.arange(400))
    assert baseline.shape == candidate.shape == (400, 30)
    assert sum(one.blocks) == 30
    spreads = [np.log(side).std() for side in (baseline, candidate)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.15)
    assert 0.018 < spreads[0] < 0.04
    assert abs(np.log(candidate).mean() - np.log(baseline).mean()) < 0.004


def test_plain_noise_is_of_the_size_that_it_says() -> None:
    baseline, _ = source("runs", "plain").measure(np.random.default_rng(2), np.arange(400))
    assert np.log(baseline).std() == pytest.approx(0.02, rel=0.03)


def test_autocorrelation_is_there() -> None:
    one = source("runs", "autocorrelated", samples=200)
    found, _ = lag_correlation([one.measure(np.random.default_rng(3), np.arange(400))[0]])
    assert np.median(found) == pytest.approx(0.6, abs=0.05)


def test_processes_of_rounds_stay_in_their_mode() -> None:
    one = source("rounds", "bimodal")
    baseline, _ = one.measure(np.random.default_rng(4), np.arange(400))
    rounds = np.log(baseline).reshape(400, 5, 6)
    assert rounds.std(axis=2, ddof=1).mean() == pytest.approx(0.02, rel=0.1)
    assert rounds.mean(axis=2).std() > 0.02


def test_only_the_asked_cases_are_measured() -> None:
    mixed = Source("runs", mixed_kinds(10), 0.02, 15, True)
    assert mixed.measure(np.random.default_rng(5), [3, 7])[0].shape == (2, 15)


def test_kinds_are_mixed_as_they_say() -> None:
    assert np.bincount(mixed_kinds(500)).tolist() == [200, 100, 100, 100]
    assert set(plain_kinds(7)) == {0}


def test_rounds_need_a_multiple() -> None:
    with pytest.raises(UsageError, match="multiple of 5"):
        source("rounds", "plain", samples=12)
