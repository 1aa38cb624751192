"""What all ranks together reach in one large matrix product: the peak of utilisations where no specification is known.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from suites.tensors import fill, torch_dtype

if TYPE_CHECKING:
    from bench.suite import Context, Site

SIDE, ROUNDS = 1024, 5
"""Of the square matrices on a CPU: 2 GFLOP, large enough to reach the rate, small enough for a second."""

SPECIFICATION, MEASURED = "specification", "measured matmul, all ranks at once"


def peak_source(site: Site, dtype: str) -> str:
    """Where ``peak_of_ranks`` takes the peak from; for a row's parameter."""
    return SPECIFICATION if site.device == "cuda" and dtype in site.peak_tflops else MEASURED


def peak_of_ranks(context: Context, dtype: str) -> float:
    """FLOP/s of all ranks together (collective at first, then remembered).

    On a GPU with a known specification, that. Elsewhere what a product of two square matrices reaches on
    all ranks at once, in the best round: ranks may share cores, so that one alone would be faster.
    """
    if peak_source(context.site, dtype) == SPECIFICATION:
        return context.site.peak_tflops[dtype].value * 1e12 * context.group.world
    key = f"matmul_rate/{dtype}"
    if key not in context.scratch:
        context.scratch[key] = _measure(context, dtype)
    rate: float = context.scratch[key]
    return rate


def _measure(context: Context, dtype: str) -> float:
    site = context.site
    side = SIDE if site.device == "cpu" else 8 * SIDE
    left, right = (
        fill(torch.empty(side, side, dtype=torch_dtype(dtype), device=site.device), seed, side**-0.5) for seed in (1, 2)
    )
    out = torch.empty_like(left)
    seconds = np.zeros(ROUNDS)
    # The first call is a warm-up.
    for number in range(-1, ROUNDS):
        context.group.barrier()
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        if site.device == "cuda":
            torch.cuda.synchronize()
        seconds[max(number, 0)] = time.perf_counter() - start
        context.alive()
    slowest = context.group.gather(seconds).max(axis=0)
    return float(2 * side**3 * context.group.world / slowest.min())
