"""Traffic and payload: byte for byte the same everywhere, and shaped as they say."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.alltoall import TRAFFIC_KINDS
from ciera_piper_core.alltoall.traffic import (
    MAX_ROWS,
    WORDS_PER_RANK,
    payload_words,
    splitmix64,
    stream_key,
    traffic_matrix,
)

DIGESTS = {
    "uniform": "d2991f8f848cf850f1c40d94201b364e",
    "zipf": "e703f7c97261e16ef281220016b8a935",
    "hot_rank": "c02dd5766a06e17a86877685f6da0ed4",
    "idle_rank": "3f3c4558a2c9c45c894009bb7f3713a4",
}
"""Of the matrices below; a second program, in plain Python integers, gave the same."""


def digest(array: np.ndarray) -> str:
    little_endian = array.astype(array.dtype.newbyteorder("<"))
    return hashlib.blake2b(little_endian.tobytes(), digest_size=16).hexdigest()


def test_splitmix64_is_the_published_generator() -> None:
    """First outputs of the reference implementation for seed 1234567."""
    assert splitmix64(1234567, np.arange(5, dtype=np.uint64)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("kind", TRAFFIC_KINDS)
def test_the_seed_decides_the_traffic_on_every_machine(kind: str) -> None:
    assert digest(np.stack([traffic_matrix(kind, 13, 1000, seed) for seed in (0, 1, 2**40)])) == DIGESTS[kind]


def test_the_seed_decides_the_payload_on_every_machine() -> None:
    words = payload_words(stream_key(1, "payload"), 5, np.arange(1000, dtype=np.uint64))
    assert digest(words) == "38f3de9a00b2102fb765eefd8ebbf1ce"


def test_ranks_and_purposes_have_streams_of_their_own() -> None:
    words = np.arange(1000, dtype=np.uint64)
    streams = [payload_words(stream_key(0, purpose), rank, words) for purpose in ("a", "b") for rank in range(3)]
    assert len(np.unique(np.concatenate(streams))) == 6000


def test_a_rank_for_each_word_reads_from_that_ranks_stream() -> None:
    words, ranks = np.arange(10, dtype=np.uint64), np.arange(10, dtype=np.uint64) % np.uint64(3)
    mixed = payload_words(9, ranks, words)
    assert all(mixed[i] == payload_words(9, int(ranks[i]), words)[i] for i in range(10))
    last = np.array([WORDS_PER_RANK - 1], dtype=np.uint64)
    assert payload_words(9, 0, last + np.uint64(1)) == payload_words(9, 1, np.zeros(1, dtype=np.uint64))


@given(st.sampled_from(TRAFFIC_KINDS), st.integers(2, 40), st.integers(0, 10**6), st.integers(0, 2**63))
def test_every_rank_sends_its_rows(kind: str, ranks: int, rows: int, seed: int) -> None:
    matrix = traffic_matrix(kind, ranks, rows, seed)
    assert matrix.dtype == np.int64
    assert matrix.shape == (ranks, ranks)
    assert matrix.min() >= 0
    totals = sorted(matrix.sum(axis=1).tolist())
    assert totals == ([0, *[rows] * (ranks - 1)] if kind == "idle_rank" else [rows] * ranks)


@given(st.integers(1, 40), st.integers(0, 10**6), st.integers(0, 2**63))
def test_uniform_favours_nobody(ranks: int, rows: int, seed: int) -> None:
    matrix = traffic_matrix("uniform", ranks, rows, seed)
    assert matrix.max() - matrix.min() <= 1
    assert matrix.sum(axis=0).tolist() == [rows] * ranks


@given(st.integers(2, 40), st.integers(0, 2**63))
def test_zipf_shares_fall_as_one_over_the_place(ranks: int, seed: int) -> None:
    rows = 10**7
    received = np.sort(traffic_matrix("zipf", ranks, rows, seed)[0])[::-1]
    harmonic = sum(1 / k for k in range(1, ranks + 1))
    assert received.tolist() == pytest.approx([rows / harmonic / k for k in range(1, ranks + 1)], abs=20)


@given(st.integers(2, 40), st.integers(0, 2**63))
def test_a_hot_rank_gets_half_and_its_share_of_the_rest(ranks: int, seed: int) -> None:
    rows = 2 * ranks * 50
    received = np.sort(traffic_matrix("hot_rank", ranks, rows, seed).sum(axis=0))
    assert received[-1] == ranks * rows // 2 + rows // 2
    assert set(received[:-1].tolist()) == {rows // 2}


@given(st.integers(2, 40), st.integers(0, 10**6), st.integers(0, 2**63))
def test_an_idle_rank_neither_sends_nor_receives(ranks: int, rows: int, seed: int) -> None:
    matrix = traffic_matrix("idle_rank", ranks, rows + ranks, seed)
    (idle,) = np.flatnonzero(matrix.sum(axis=1) == 0)
    assert matrix[:, idle].sum() == 0
    busy = np.delete(np.delete(matrix, idle, axis=0), idle, axis=1)
    assert busy.max() - busy.min() <= 1


@pytest.mark.parametrize("kind", ["zipf", "hot_rank", "idle_rank"])
def test_the_seed_decides_who_is_hot_or_idle(kind: str) -> None:
    chosen = set()
    for seed in range(64):
        received = traffic_matrix(kind, 4, 1000, seed).sum(axis=0)
        chosen.add(int(received.argmin() if kind == "idle_rank" else received.argmax()))
    assert chosen == {0, 1, 2, 3}


def test_large_counts_stay_exact() -> None:
    matrix = traffic_matrix("zipf", 7, MAX_ROWS, 0)
    assert matrix.min() > 0
    assert matrix.sum(axis=1).tolist() == [MAX_ROWS] * 7


@pytest.mark.parametrize(
    ("kind", "ranks", "rows", "message"),
    [
        ("bursty", 4, 1, "unknown traffic 'bursty'; known: uniform, zipf, hot_rank, idle_rank"),
        ("uniform", 0, 1, "traffic 'uniform' needs more than 0 ranks"),
        ("idle_rank", 1, 1, "traffic 'idle_rank' needs more than 1 ranks"),
        ("zipf", 4, -1, "-1 rows a rank"),
        ("zipf", 4, MAX_ROWS + 1, "rows a rank"),
    ],
)
def test_impossible_traffic_is_refused(kind: str, ranks: int, rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        traffic_matrix(kind, ranks, rows, 0)  # type: ignore[arg-type]
