"""An all-to-all algorithm as phases of flows: who sends how many bytes to whom, and what must come before.

With ``N`` nodes of ``R`` ranks, rank ``(a, l)`` at place ``l`` of node ``a``, and ``M`` the bytes from
each rank to each:

- ``flat``: every rank to every other, at once.
- ``two_phase``: inside a node to the rank at the receiver's place, ``sum_b M[(a,l),(b,m)]``; then
  between equal places, ``sum_l``.
- ``halo``: (1) what stays in the node, to its receiver; (2) between equal places all for that node,
  ``sum_m M[(a,l),(b,m)]``; (3) inside the node to the receivers, ``sum_a``. V0: 1, 2, 3 one after
  the other; V1: 1 beside 2, then 3; V2: 2, then 1 beside 3.

Where nodes hold unequal numbers of ranks, or one rank, or there is one node, every algorithm is the
flat one. A rank's own rows cross nothing. No message is sent for no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.simulate import ALGORITHMS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.simulate import Algorithm
    from ciera_piper_core.simulate.job import Job

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Ranks = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Phase:
    """Flows that a rank may start once it has finished the phases before.

    Attributes:
        name: ``direct``, ``intra``, ``inter`` or ``redistribute``.
        src, dst: rank that sends and rank that receives, never the same, int32, shape ``(flows,)``.
        bytes: of each flow, above 0, likewise.
        after: numbers of the phases that sender and receiver must both have finished.
        rails: a rank hears at most one rank of each other node.
        copied: bytes that each rank reads and writes to pack and unpack, shape ``(ranks,)``.
    """

    name: str
    src: Ranks
    dst: Ranks
    bytes: Floats
    after: tuple[int, ...] = ()
    rails: bool = False
    copied: Floats | None = None


@dataclass(frozen=True, eq=False)
class Schedule:
    """Phases of one exchange.

    Attributes:
        algorithm: that was asked for. fallback: why it is the flat one instead; empty if it is not.
        job: whose ranks exchange.
        bytes_per_rank: largest that a rank sends, its own rows included.
        phases: numbered from 0, as their ``after`` names them.
    """

    algorithm: Algorithm
    job: Job
    bytes_per_rank: float
    phases: tuple[Phase, ...]
    fallback: str = ""


def fallback_reason(algorithm: Algorithm, job: Job) -> str:
    """Why a hierarchical algorithm is the flat one on this job; empty if it is not.

    Raises:
        ValueError: an unknown algorithm; the message lists them.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; known: {', '.join(ALGORITHMS)}")
    if algorithm == "flat":
        return ""
    if job.nodes == 1:
        return "one node"
    if not job.is_even:
        return "nodes of unequal size"
    if job.ranks == job.nodes:
        return "one rank a node"
    return ""


def schedule(algorithm: Algorithm, job: Job, matrix: ArrayLike, *, sent_share: float = 1.0) -> Schedule:
    """The phases of an algorithm for a traffic matrix.

    Args:
        matrix: bytes from each rank to each, shape ``(ranks, ranks)``, sender by receiver, not negative.
        sent_share: of the bytes between nodes, what the hierarchical phase sends where copies of one
            token cross once (deduplicating dispatch); 1 for all.

    Raises:
        ValueError: an unknown algorithm, a matrix of another shape, negative bytes, or a share out of range.
    """
    traffic = np.asarray(matrix)
    if traffic.shape != (job.ranks, job.ranks):
        raise ValueError(f"a traffic matrix of {job.ranks} ranks has shape {(job.ranks,) * 2}, not {traffic.shape}")
    if traffic.size and not (traffic.min() >= 0 and np.isfinite(traffic.max())):
        raise ValueError("bytes of a traffic matrix must be finite and not negative")
    if not 0 < sent_share <= 1:
        raise ValueError(f"sent_share must be above 0 and at most 1, not {sent_share!r}")
    largest = float(traffic.sum(axis=1, dtype=np.float64).max())
    reason = fallback_reason(algorithm, job)
    if algorithm == "flat" or reason:
        return Schedule(algorithm, job, largest, (_direct(traffic),), reason)
    grid, rank = _by_place(traffic, job)
    build = _two_phase if algorithm == "two_phase" else _halo
    return Schedule(algorithm, job, largest, build(algorithm, grid, rank, sent_share))


def uniform_matrix(ranks: int, bytes_per_rank: float) -> Floats:
    """Equal shares: ``bytes_per_rank / ranks`` from each rank to each, itself included."""
    return np.full((ranks, ranks), bytes_per_rank / ranks)


def _direct(traffic: NDArray[Any]) -> Phase:
    wanted = traffic > 0
    np.fill_diagonal(wanted, False)
    # Row by row, as nonzero goes; its own numbers would take twice the memory of these.
    src = np.repeat(np.arange(len(traffic), dtype=np.int32), wanted.sum(axis=1))
    dst = np.concatenate([np.flatnonzero(row).astype(np.int32) for row in wanted])
    return Phase("direct", src, dst, traffic[wanted].astype(np.float64, copy=False))


def _by_place(traffic: NDArray[Any], job: Job) -> tuple[Floats, Ranks]:
    """The matrix as ``[a, l, b, m]``, and the rank at each ``[a, l]``."""
    nodes, places = job.nodes, job.ranks // job.nodes
    rank = np.empty((nodes, places), dtype=np.int32)
    rank[job.node, job.local] = np.arange(job.ranks)
    order = rank.ravel()
    if not np.array_equal(order, np.arange(job.ranks)):
        traffic = traffic[np.ix_(order, order)]
    return traffic.reshape(nodes, places, nodes, places), rank


def _inside(name: str, volume: Floats, rank: Ranks, after: tuple[int, ...] = (), copied: Floats | None = None) -> Phase:
    """Flows within nodes from ``volume[a, l, m]``."""
    node, sender, receiver = np.nonzero(volume * (1 - np.eye(volume.shape[1])))
    return Phase(name, rank[node, sender], rank[node, receiver], volume[node, sender, receiver], after, copied=copied)


def _rails(volume: Floats, rank: Ranks, after: tuple[int, ...], copied: Floats) -> Phase:
    """Flows between equal places from ``volume[a, b, l]``."""
    sender, receiver, place = np.nonzero(volume)
    crosses = sender != receiver
    sender, receiver, place = sender[crosses], receiver[crosses], place[crosses]
    return Phase(
        "inter", rank[sender, place], rank[receiver, place], volume[sender, receiver, place], after, True, copied
    )


def _per_rank(values: Floats, rank: Ranks) -> Floats:
    """``values[a, l]`` in order of rank."""
    out = np.empty(rank.size)
    out[rank] = values
    return out


def _two_phase(algorithm: Algorithm, grid: Floats, rank: Ranks, sent_share: float) -> tuple[Phase, ...]:
    gathered = grid.sum(axis=2, dtype=np.float64)  # [a, l, m]
    carried = np.einsum("albm->abm", grid, dtype=np.float64, casting="unsafe") * sent_share
    # Rows are sorted by place before the first phase, and by node before the second: each read and written.
    before = _per_rank(2 * gathered.sum(axis=2), rank)
    between = _per_rank(2 * gathered.sum(axis=1), rank)
    return (
        _inside("intra", gathered, rank, copied=before),
        _rails(carried, rank, (0,), between),
    )


def _halo(algorithm: Algorithm, grid: Floats, rank: Ranks, sent_share: float) -> tuple[Phase, ...]:
    node = np.arange(grid.shape[0])
    stays = grid[node, :, node, :].astype(np.float64)  # [a, l, m]
    carried = np.einsum("albm->abl", grid, dtype=np.float64, casting="unsafe")
    carried[node, node] = 0
    received = np.einsum("albm->blm", grid, dtype=np.float64, casting="unsafe")
    # What rounding leaves of a difference of equals is no message.
    arrives = np.where(received - stays > 1e-9 * received, received - stays, 0.0)  # [b, l, m]
    # Rows for other nodes are gathered before the second phase, and scattered after the third.
    before = _per_rank(2 * carried.sum(axis=1), rank)
    after = _per_rank(2 * arrives.sum(axis=1), rank)
    intra_after, inter_after, last_after = {
        "halo_v0": ((), (0,), (1,)),
        "halo_v1": ((), (), (0, 1)),
        "halo_v2": ((1,), (), (1,)),
    }[algorithm]
    return (
        _inside("intra", stays, rank, intra_after),
        _rails(carried * sent_share, rank, inter_after, before),
        _inside("redistribute", arrives, rank, last_after, after),
    )
