"""Router traces: how many tokens went to each expert, step by step, as a file of JSON lines.

Each line is an object with ``counts``: tokens by expert, or a list of such lists, one a source rank.
Other keys, such as ``step`` and ``layer``, are for people. All lines have as many experts, and as
many sources. A router writes such a line for each step and layer; ``traffic_steps`` replays it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.apportion import apportion

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MOST_STEPS = 64
"""Steps of a trace that are replayed, the first ones."""

MOST_COUNT = 1 << 30
"""Tokens that a line may have for one expert, so that shares stay exact."""


@dataclass(frozen=True)
class RouterTrace:
    """A trace that was read.

    Attributes:
        counts: shape ``(steps, sources, experts)``, int64; one source if the file does not tell them apart.
        digest: of the file, 12 hexadecimal digits.
    """

    counts: NDArray[np.int64]
    digest: str


def read_trace(path: Path) -> RouterTrace:
    """Read a trace, at most ``MOST_STEPS`` lines of it.

    Raises:
        ValueError: it cannot be read, has no line, or a line is not as above; the message names the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read router trace {path}: {error.strerror or error}") from None
    steps: list[list[list[int]]] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        if len(steps) == MOST_STEPS:
            break
        where = f"router trace {path}, line {number}"
        steps.append(_parsed(line, where))
        if [len(source) for source in steps[-1]] != [len(source) for source in steps[0]]:
            raise ValueError(f"{where} has other numbers of sources or experts than the first")
    if not steps:
        raise ValueError(f"router trace {path} is empty; it takes JSON lines with `counts`")
    return RouterTrace(np.array(steps, dtype=np.int64), hashlib.blake2b(content, digest_size=6).hexdigest())


def replayed(trace: RouterTrace, ranks: int, rows_per_rank: int) -> NDArray[np.int64]:
    """The traffic of each step: shape ``(steps, ranks, ranks)``, sender by receiver, int64.

    Experts are on ranks by block. Every rank sends ``rows_per_rank`` in all, shared out as the
    trace's tokens were: as those of the source in its place, where the trace tells sources apart. A
    step without tokens is even.

    Raises:
        ValueError: fewer experts than ranks.
    """
    steps, sources, experts = trace.counts.shape
    if experts < ranks:
        raise ValueError(f"a trace of {experts} experts cannot be replayed on {ranks} ranks; take {experts} or fewer")
    rank_of = np.arange(experts) * ranks // experts
    result = np.zeros((steps, ranks, ranks), dtype=np.int64)
    for step in range(steps):
        for rank in range(ranks):
            counts = trace.counts[step, rank * sources // ranks]
            weights = np.bincount(rank_of, counts, minlength=ranks).astype(np.int64)
            result[step, rank] = apportion(rows_per_rank, weights if weights.any() else np.ones_like(weights), rank)
    return result


def _parsed(line: bytes, where: str) -> list[list[int]]:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is no JSON") from None
    counts = value.get("counts") if isinstance(value, dict) else None
    if not isinstance(counts, list) or not counts:
        raise ValueError(f"{where} has no `counts` (tokens by expert, or a list of such lists)")
    sources = counts if isinstance(counts[0], list) else [counts]
    for source in sources:
        if not isinstance(source, list) or not source:
            raise ValueError(f"{where}: each source has a list of tokens by expert")
        for count in source:
            if type(count) is not int or not 0 <= count <= MOST_COUNT:
                raise ValueError(f"{where}: {count!r} is no number of tokens from 0 to {MOST_COUNT}")
    if len({len(source) for source in sources}) > 1:
        raise ValueError(f"{where}: sources have different numbers of experts")
    return sources
