"""How long a pipeline schedule takes when all stages are alike: closed forms, for arrays of candidates.

Each rank runs a fixed order, so the step is the longest path through operations and transfers: the
largest of ``n_f * f + n_b * b + n_w * w + n_p * p`` over paths. Few of them can be the longest,
and their counts are polynomials of ranks and microbatches. The tables below list them; each was
found from the paths of small pipelines, and the tests compare them with ``simulate``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.schedule_operations import operations
from ciera_piper_core.planner.schedule_simulation import simulate
from ciera_piper_core.planner.schedules import Schedule, allowed, check, chunks_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Path = tuple[Ints | int, Ints | int, Ints | int, Ints | int]

ZBV_BETWEEN_ERROR = (-0.03, 0.08)
"""Bounds of ``makespan``'s relative error for ZBV with more than ``pp`` and less than ``2 * pp - 1`` microbatches."""

DUALPIPEV_ERROR = 0.03
"""How much ``makespan`` may be too low, as a share, for DualPipeV where it is not exact."""


def makespan(
    schedule: Schedule,
    pp: ArrayLike,
    microbatches: ArrayLike,
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
    p2p: ArrayLike = 0.0,
    *,
    chunks: int | None = None,
    overlapped: ArrayLike = 0.0,
) -> Floats:
    """Seconds from the first operation to the last, of the shape that the arguments broadcast to.

    What ``simulate`` gives for equal stages wherever ``is_exact``; else:

    - where a transfer takes longer than the computation of a chunk, an upper bound: the time if
      that computation took as long as the transfer;
    - ZBV with ``pp < microbatches < 2 * pp - 1``: interpolated, within ``ZBV_BETWEEN_ERROR``;
    - DualPipeV with ``overlapped``, or with weight parts shorter than a transfer and input parts
      shorter than a forward: at most ``DUALPIPEV_ERROR`` too low.

    ``zero_bubble`` with fewer microbatches than ranks has no closed form and is simulated, which is slow.

    Args:
        pp, microbatches: ranks of the pipeline, microbatches of a step; integers.
        forward, backward_input, backward_weight: seconds of one microbatch in **all chunks of a
            rank**, so that schedules can be compared at the same numbers. Recomputation belongs to
            ``backward_input``.
        p2p: seconds of one transfer to the next stage; nothing waits for it but its receiver.
        overlapped: seconds that a rank saves for a microbatch by running forwards beside backwards,
            if all its chunks do (DualPipeV only; the two chunks save half each).

    Raises:
        ValueError: negative or infinite seconds, a broken limit of the schedule, or an
            ``overlapped`` that is longer than the shorter of forward and backward.
    """
    count = chunks_of(schedule, chunks)
    ranks, batches, f, b, w, p, saved = _broadcast(
        pp, microbatches, forward, backward_input, backward_weight, p2p, overlapped
    )
    _check_arguments(schedule, count, ranks, batches, f, b, w, saved)
    f, b, w, saved = f / count, b / count, w / count, saved / count
    p = np.where(ranks == 1, 0.0, p)
    serial = count * batches * (f + b + w)
    if schedule == "gpipe":
        return np.asarray(serial + (ranks - 1) * (f + b + w + 2 * p))
    if schedule == "1f1b":
        return np.asarray(serial + (ranks - 1) * (f + b + w + 2 * p) + _round_trips(batches - 1, ranks) * p)
    # The forms hold for transfers no longer than a chunk's computation; see `makespan` on longer ones.
    slow_f, slow_b = np.maximum(f, p), np.maximum(b, p)
    if schedule == "interleaved":
        return np.asarray(_interleaved(ranks, batches, count, slow_f, np.maximum(b + w, p), p))
    if schedule == "zero_bubble":
        seconds = np.array(_zero_bubble(ranks, batches, count, slow_f, slow_b, w, p))
        few = np.asarray(batches < ranks)
        if few.any():
            seconds[few] = _simulated(schedule, ranks[few], batches[few], count, f[few], b[few], w[few], p[few])
    elif schedule == "zbv":
        seconds = _zbv(ranks, batches, slow_f, slow_b, w, p)
    else:
        # Each of the paths that can be the longest goes through so many pairs.
        pairs = 2 * batches - ranks - 2
        seconds = _dualpipev(ranks, batches, slow_f, slow_b, w, p) - pairs * saved
        serial = serial - pairs * saved
    return np.where(ranks == 1, serial, seconds)


def is_exact(
    schedule: Schedule,
    pp: ArrayLike,
    microbatches: ArrayLike,
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
    p2p: ArrayLike = 0.0,
    *,
    chunks: int | None = None,
    overlapped: ArrayLike = 0.0,
) -> NDArray[np.bool_]:
    """Where ``makespan`` of the same arguments is what ``simulate`` gives, and no bound or estimate."""
    count = chunks_of(schedule, chunks)
    ranks, batches, f, b, w, p, saved = _broadcast(
        pp, microbatches, forward, backward_input, backward_weight, p2p, overlapped
    )
    if schedule in ("gpipe", "1f1b"):
        return np.ones(ranks.shape, dtype=np.bool_)
    slow = p * count > np.minimum(f, b + w if schedule == "interleaved" else b)
    if schedule == "zero_bubble":
        slow &= batches >= ranks
    if schedule == "dualpipev":
        slow |= (saved > 0) | ((w < p * count) & (b < f))
    between = (batches > ranks) & (batches < 2 * ranks - 1) if schedule == "zbv" else np.zeros_like(slow)
    return np.asarray((ranks == 1) | ~(slow | between))


def _broadcast(
    pp: ArrayLike, microbatches: ArrayLike, *seconds: ArrayLike
) -> tuple[Ints, Ints, Floats, Floats, Floats, Floats, Floats]:
    ranks, batches, f, b, w, p, saved = np.broadcast_arrays(
        np.asarray(pp, dtype=np.int64),
        np.asarray(microbatches, dtype=np.int64),
        *(np.asarray(value, dtype=np.float64) for value in seconds),
    )
    names = ("forward", "backward_input", "backward_weight", "p2p", "overlapped")
    for name, value in zip(names, (f, b, w, p, saved), strict=True):
        if not (np.isfinite(value).all() and (value >= 0).all()):
            raise ValueError(f"{name} must be finite and not negative")
    return ranks, batches, f, b, w, p, saved


def _check_arguments(
    schedule: Schedule, count: int, ranks: Ints, batches: Ints, f: Floats, b: Floats, w: Floats, saved: Floats
) -> None:
    fine = allowed(schedule, ranks, batches, chunks=count)
    if not fine.all():
        first = np.argmin(fine)
        check(schedule, int(ranks.flat[first]), int(batches.flat[first]), chunks=count)
    if saved.any() and schedule != "dualpipev":
        raise ValueError(f"{schedule} runs no forward beside a backward; leave overlapped out")
    if (saved > np.minimum(f, b + w)).any():
        raise ValueError("overlapped is longer than the shorter of forward and backward, which bounds it")


def _longest(paths: list[Path], *seconds: Floats) -> Floats:
    """The longest of paths that are given by how many forwards, input and weight backwards, and transfers they have."""
    longest = np.zeros_like(seconds[0])
    for path in paths:
        length = np.zeros_like(longest)
        for number, each in zip(path, seconds, strict=True):
            length += number * each
        np.maximum(longest, length, out=longest)
    return longest


def _round_trips(steps: Ints, ranks: Ints) -> Ints:
    """Transfers on a path that goes from the first rank to the last and back, ``ranks`` steps at a time."""
    rest = steps % ranks
    return np.asarray(2 * (ranks - 1) * (steps // ranks) + 2 * np.maximum(0, rest - 1))


def _wrap(ranks: Ints, a_round: Ints, chunks: int, hop: Floats, on_rank: Floats) -> Floats:
    """What all wraps from the last rank to the first add: a round's first microbatch is back there
    after ``ranks`` hops, while the first rank is busy with the ``a_round`` microbatches of the round."""
    return np.asarray((chunks - 1) * np.maximum(0.0, ranks * hop - a_round * on_rank))


def _interleaved(ranks: Ints, batches: Ints, chunks: int, f: Floats, backward: Floats, p: Floats) -> Floats:
    a_round = batches // np.maximum(1, batches // ranks)
    return (
        (chunks * batches + ranks - 1) * (f + backward)
        + 2 * (ranks - 1) * p
        + _wrap(ranks, a_round, chunks, f + p, f)
        + _wrap(ranks, a_round, chunks, backward + p, backward)
    )


def _zero_bubble(ranks: Ints, batches: Ints, chunks: int, f: Floats, b: Floats, w: Floats, p: Floats) -> Floats:
    """For ``batches >= ranks``."""
    a_round = batches // np.maximum(1, batches // ranks)
    total = chunks * batches
    after = ranks - 1
    # A path may avoid weight parts by going up and down the pipeline: two transfers for each.
    steps = chunks * (batches - a_round) + a_round - ranks - 1
    one_round = steps < 0
    avoided = np.where(one_round, steps + 1, steps + (-steps) // ranks)
    weights = total - after
    transfers = 4 * after
    all_weights = _longest([(total + after, total + after, weights, transfers)], f, b, w, p)
    fewer_weights = _longest(
        [(total + after, total + after, weights - avoided, transfers + np.where(one_round, 2 * steps, 2 * avoided))],
        f, b, w, p,
    ) + _wrap(ranks, a_round, chunks, b + p, b + w)  # fmt: skip
    others = _longest(
        [
            (total, total + after, total, 2 * after),
            (total + after, total, total, 3 * after - 2 * one_round),
        ],
        f, b, w, p,
    )  # fmt: skip
    steady = np.where(one_round, 0.0, all_weights)
    wrap = _wrap(ranks, a_round, chunks, f + p, f)
    return np.maximum(np.maximum(steady, fewer_weights), others) + wrap


def _zbv(ranks: Ints, batches: Ints, f: Floats, b: Floats, w: Floats, p: Floats) -> Floats:
    full = 2 * ranks - 1
    many = _zbv_many(ranks, np.maximum(batches, full), f, b, w, p)
    if (batches >= full).all():
        return many
    few = _zbv_few(ranks, np.minimum(batches, ranks), f, b, w, p)
    between = np.clip((batches - ranks) / np.maximum(1, full - ranks), 0.0, 1.0)
    return np.where(batches >= full, many, few + between * (many - few))


def _zbv_many(ranks: Ints, batches: Ints, f: Floats, b: Floats, w: Floats, p: Floats) -> Floats:
    """For ``batches >= 2 * ranks - 1``."""
    n, a = 2 * batches, ranks - 1
    return _longest(
        [
            (n, n + a, n, 5 * a - 2),
            (n, n + 1, n + a - 1, 3 * a),
            (n, n + 2 * a, n - 2 * a, 6 * a - 2),
            (n, n + 2 * a, n - 2 * a - 1, 6 * a),
            (n, n + a, n - 1, 5 * a),
            (n + a, n, n - 1, 5 * a),
            (n + a, n + a, n - 2 * a - 1, 6 * a),
            (n + a - 1, n + 1, n, 5 * a - 2),
            (n + 1, n, n + a - 1, 3 * a - 2),
            (n + 2 * a, n - a, n - 1, 3 * a),
            (n + 2 * a - 1, n + 1 - a, n, 3 * a - 2),
            (n + 2 * a, n, n - 2 * a - 1, 4 * a),
            (n + 2 * a - 1, n + 1, n - 2 * a, 4 * a - 2),
            (n + a - 1, n + a + 1, n - 2 * a, 6 * a - 2),
        ],
        f, b, w, p,
    )  # fmt: skip


def _zbv_few(ranks: Ints, batches: Ints, f: Floats, b: Floats, w: Floats, p: Floats) -> Floats:
    """For ``batches <= ranks``."""
    n, r, m = 2 * batches, 2 * ranks, batches
    a = ranks - 1
    return _longest(
        [
            (r, r + n - 2, n, 4 * a),
            (r + m - 1, r + m - 1, n, 2 * r - n - 2),
            (r + n - 2, r, 2, 4 * a),
            (r, r + n - 2, np.minimum(4, n), 2 * r + n - 8),
            (r + n - 2, r + 1 - m, m + 1, 2 * r - n - 2),
            (r + m - 1, r + m - 1, np.minimum(3, n), 2 * r + n - 8),
        ],
        f, b, w, p,
    )  # fmt: skip


def _dualpipev(ranks: Ints, batches: Ints, f: Floats, b: Floats, w: Floats, p: Floats) -> Floats:
    n, a = 2 * batches, ranks - 1
    trips = _round_trips(batches - 1, ranks)
    paths: list[Path] = [
        (n + a - 1, n + 2 * a, n - a, 4 * a + trips),
        (n + 2 * a, n, n, a + trips),
        (n + a - 1, n + a, n, 3 * a + trips),
        (n + 2 * a, n + a, n - a, 2 * a + trips),
    ]
    # If the last round trip has one step only, a path gains by leaving it out for a forward elsewhere.
    one = np.where((batches - 1) % ranks == 1, 1, 0)
    paths += [
        (n + (a - 1) + one, n + 2 * a - one, n - a, 4 * a + trips),
        (n + (a - 1) + one, n + a - one, n, 3 * a + trips),
        (n + a - 1 + 2 * one, n + 2 * a - 2 * one, n - a - one, 4 * a + trips),
        (n + 2 * a, n + a - one, n - a - one, 2 * a + 2 * one + trips),
    ]
    return _longest(paths, f, b, w, p)


def _simulated(
    schedule: Schedule,
    ranks: Ints,
    batches: Ints,
    chunks: int,
    f: Floats,
    b: Floats,
    w: Floats,
    p: Floats,
) -> Floats:
    """One simulation for each different row."""
    rows, place = np.unique(np.stack([ranks, batches, f, b, w, p], axis=1), axis=0, return_inverse=True)
    seconds = []
    for row in rows:
        order = operations(schedule, int(row[0]), int(row[1]), chunks=chunks)
        seconds.append(simulate(order, row[2], row[3], row[4], row[5]).step_seconds)
    return np.asarray(np.array(seconds)[place.ravel()])
