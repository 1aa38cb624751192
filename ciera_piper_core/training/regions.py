"""The parts of a training step, by the names of the regions that mark them, and the time spent in each alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ciera_piper_core.ranges import Span

RESIDUAL = "residual"
"""What of a step lies in no part of it."""
PARTS = (
    "embedding",
    "attention",
    "dense",
    "moe.router",
    "moe.dispatch",
    "moe.experts",
    "moe.combine",
    "loss",
    "parameter_gather",
    "gradient_reduce",
    "pipeline_wait",
    "optimizer",
    "codec",
    "migration",
)
"""Of ``dense``: dense blocks, shared experts, and what lies around them in a feed-forward half."""
REGIONS = (*PARTS, RESIDUAL)
INSTRUMENTS = "instruments"
"""What marking a step costs, where it is worth telling: no part of the step."""
COMMUNICATION = ("moe.dispatch", "moe.combine", "parameter_gather", "gradient_reduce", "pipeline_wait", "migration")
"""Parts in which the training thread moves data or waits for it."""

ALLGATHER, REDUCE_SCATTER, OTHER = "allgather", "reduce_scatter", "other"
SHARES = (ALLGATHER, REDUCE_SCATTER, OTHER)


def exclusive_seconds(
    spans: Iterable[Span], began_ns: int, ended_ns: int, threads: Collection[int]
) -> dict[str, float]:
    """By region of ``REGIONS``, the time from began to ended that is spent in it and in no region within it, s.

    What lies in none of them is ``residual``, so that all together are the whole time, less that of ``INSTRUMENTS``.

    Args:
        spans: of any thread; those of other threads or names are left out.
        threads: that the step runs on, of which one works at a time: the training thread, and on a GPU
            the one that runs backward passes while the training thread waits for it.
    """
    known = {*PARTS, INSTRUMENTS}
    mine = sorted(
        (span for span in spans if span.thread in threads and span.name in known),
        key=lambda span: (span.start_ns, -span.end_ns),
    )
    found = dict.fromkeys((*REGIONS, INSTRUMENTS), 0)
    found[RESIDUAL] = ended_ns - began_ns
    around: list[Span] = []
    for span in mine:
        while around and around[-1].end_ns <= span.start_ns:
            around.pop()
        length = span.end_ns - span.start_ns
        found[span.name] += length
        # It is charged to this region, so no more to the one around it.
        found[around[-1].name if around else RESIDUAL] -= length
        around.append(span)
    return {name: found[name] / 1e9 for name in REGIONS}


def communication_shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """How the time of communication is made up, by ``SHARES``: gathers of parameters, reductions of gradients, others.

    Args:
        seconds: by region, as ``exclusive_seconds`` gives it; missing ones count nothing.

    Returns:
        Shares that add up to 1; all 0 where nothing was communicated. Coding that communication waits
        for is a part of its own and in none of them.
    """
    gathered, reduced = (seconds.get(name, 0.0) for name in ("parameter_gather", "gradient_reduce"))
    whole = sum(seconds.get(name, 0.0) for name in COMMUNICATION)
    if not whole:
        return dict.fromkeys(SHARES, 0.0)
    return {
        ALLGATHER: gathered / whole,
        REDUCE_SCATTER: reduced / whole,
        OTHER: (whole - gathered - reduced) / whole,
    }
