"""Who sends how many rows to whom, and the bytes in them: the same on every machine for the same seed.

Only integers, SplitMix64 and BLAKE2b are used, whose results are defined exactly; no floating
point, and no random generator that a library may change.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.alltoall import TRAFFIC_KINDS
from ciera_piper_core.apportion import MOST, ZIPF_SCALE, apportion, zipf_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.alltoall import TrafficKind

MAX_ROWS = MOST // ZIPF_SCALE
"""Rows that can still be shared out exactly."""

WORDS_PER_RANK = 1 << 40
"""Length of a rank's stretch of the payload, in words of eight bytes."""

_GOLDEN = 0x9E3779B97F4A7C15


def stream_key(seed: int, purpose: str) -> int:
    """A 64-bit key, so that streams for different purposes are independent under one seed."""
    digest = hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def splitmix64(key: int, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Outputs number ``index`` (from 0) of the SplitMix64 generator that was seeded with ``key``."""
    z = (index + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def payload_words(key: int, rank: int | NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Words number ``word`` of the payload that ``rank`` sends.

    Args:
        key: from ``stream_key``.
        rank: one for all words, or one for each.
        word: indices below ``WORDS_PER_RANK``.
    """
    return splitmix64(key, np.asarray(rank, dtype=np.uint64) * np.uint64(WORDS_PER_RANK) + word)


def traffic_matrix(kind: TrafficKind, ranks: int, rows_per_rank: int, seed: int) -> NDArray[np.int64]:
    """Rows that each rank sends to each: shape ``(ranks, ranks)``, sender by receiver, int64.

    Kinds:
        uniform: equal shares.
        zipf: the k-th most popular receiver gets a share proportional to 1/k; the seed decides who is which.
        hot_rank: half of all rows go to one receiver, which the seed chooses; the other half is uniform.
        idle_rank: one rank, which the seed chooses, sends and receives nothing; the rest is uniform.

    A rank's rows to itself are part of its shares, as tokens whose expert is at home. Rows that do
    not divide go by largest remainder; equal remainders are given out starting with a different
    receiver for each sender, so that they favour no receiver.

    Args:
        rows_per_rank: what each rank sends in total (but an idle one).

    Raises:
        ValueError: an unknown kind, no ranks, one rank that would have to idle, or a number of rows
            below zero or above ``MAX_ROWS``.
    """
    if kind not in TRAFFIC_KINDS:
        raise ValueError(f"unknown traffic {kind!r}; known: {', '.join(TRAFFIC_KINDS)}")
    if ranks < (2 if kind == "idle_rank" else 1):
        raise ValueError(f"traffic {kind!r} needs more than {ranks} ranks")
    if not 0 <= rows_per_rank <= MAX_ROWS:
        raise ValueError(f"{rows_per_rank} rows a rank; it takes 0 to {MAX_ROWS}")
    # One word a rank, in an order of its own: the least is first among all, as good as drawn.
    order = np.argsort(splitmix64(stream_key(seed, "traffic"), np.arange(ranks, dtype=np.uint64)), kind="stable")
    weights = np.ones(ranks, dtype=np.int64)
    if kind == "zipf":
        weights[order] = zipf_weights(ranks)
    elif kind == "hot_rank":
        weights[order[0]] += ranks
    elif kind == "idle_rank":
        weights[order[0]] = 0
    matrix = np.stack([apportion(rows_per_rank, weights, first) for first in range(ranks)])
    if kind == "idle_rank":
        matrix[order[0]] = 0
    return matrix
