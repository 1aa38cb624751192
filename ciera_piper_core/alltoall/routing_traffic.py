"""Which ranks the tokens of a batch go to: top-k routing that follows from a seed, to the bit, on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.alltoall import TRAFFIC_KINDS
from ciera_piper_core.alltoall.traffic import splitmix64, stream_key
from ciera_piper_core.apportion import zipf_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS_AT_ONCE = 4096
WORDS_PER_RANK = 1 << 40


def routed_ranks(
    kind: str, rank: int, ranks: int, tokens: int, top_k: int, experts: int, seed: int
) -> NDArray[np.int64]:
    """The rank of each choice of this rank's tokens: shape ``(tokens, top_k)``, int64.

    A token's experts are distinct, drawn one by one with probabilities in proportion to the experts'
    popularity among those that it does not have yet. Experts are on ranks by block.

    Kinds:
        uniform: all are equally popular.
        zipf: the k-th most popular in proportion to 1/k; the seed decides which is which.
        hot_rank: those of one rank, which the seed chooses, are as popular as all others together.
        idle_rank: the experts of one rank, which the seed chooses, are not drawn, and its own tokens
            are none: shape ``(0, top_k)`` there.

    Raises:
        ValueError: an unknown kind, experts that ranks do not share evenly, or too few for top-k.
    """
    if kind not in TRAFFIC_KINDS:
        raise ValueError(f"unknown routing {kind!r}; known: {', '.join(TRAFFIC_KINDS)}")
    each, rest = divmod(experts, ranks)
    if rest or each < 1:
        raise ValueError(f"{experts} experts are not as many on each of {ranks} ranks")
    usable = experts - each if kind == "idle_rank" else experts
    if usable < top_k:
        raise ValueError(f"top-{top_k} routing needs more than {usable} experts to draw from")
    order = np.argsort(splitmix64(stream_key(seed, "routing"), np.arange(experts, dtype=np.uint64)), kind="stable")
    chosen = int(order[0]) // each
    weights = np.ones(experts, dtype=np.int64)
    if kind == "zipf":
        weights[order] = zipf_weights(experts)
    elif kind == "hot_rank":
        weights[chosen * each : (chosen + 1) * each] = max(1, ranks - 1)
    elif kind == "idle_rank":
        weights[chosen * each : (chosen + 1) * each] = 0
        if rank == chosen:
            tokens = 0
    return _distinct(weights, tokens, top_k, stream_key(seed, "choices"), rank) // each


def _distinct(weights: NDArray[np.int64], tokens: int, top_k: int, key: int, stream: int) -> NDArray[np.int64]:
    """Distinct indices by weight, shape ``(tokens, top_k)``: each drawn among those that are left."""
    result = np.empty((tokens, top_k), dtype=np.int64)
    base = np.uint64(stream) * np.uint64(WORDS_PER_RANK)
    for first in range(0, tokens, TOKENS_AT_ONCE):
        here = np.arange(first, min(first + TOKENS_AT_ONCE, tokens))
        left = np.tile(weights, (len(here), 1))
        for draw in range(top_k):
            limits = left.cumsum(axis=1)
            words = splitmix64(key, base + (here * top_k + draw).astype(np.uint64))
            # Of 64 bits: what a remainder favours is far beyond any count that could be seen.
            place = (words % limits[:, -1].astype(np.uint64)).astype(np.int64)
            result[here, draw] = (limits <= place[:, np.newaxis]).sum(axis=1)
            left[np.arange(len(here)), result[here, draw]] = 0
    return result
