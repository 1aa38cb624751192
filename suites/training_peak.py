"""The rate that a training's utilisation is held against: of the data sheet, or measured as the largest product."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.suite import Context

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
EDGES = (512, 1024)
SECONDS = 0.15
"""Of products of each edge, at least."""

SPECIFICATION, MEASURED = "specification", "measured"


def source_of_peak(device: str) -> str:
    """Where the peak is from: a GPU's data sheet; a CPU has none that counts for a few ranks on some of its cores."""
    return SPECIFICATION if device == "cuda" else MEASURED


def peak_flops_per_second(context: Context, precision: str) -> float | None:
    """What all ranks together can do, FLOP/s (collective); None where it is not known.

    On CPUs all ranks multiply square matrices at the same time, as they would train, and the rates of
    the fastest edge are summed.
    """
    site, group = context.site, context.group
    if site.device == "cuda":
        ceiling = site.peak_tflops.get(DTYPES[precision])
        known = group.gather_objects(ceiling.value if ceiling else None)
        return None if None in known else 1e12 * sum(known)
    best = 0.0
    for edge in EDGES:
        group.barrier()
        best = max(best, sum(group.gather_objects(_rate(edge, precision))))
    return best


def _rate(edge: int, precision: str) -> float:
    import torch

    dtype = getattr(torch, DTYPES[precision])
    a, b = torch.ones(edge, edge, dtype=dtype), torch.ones(edge, edge, dtype=dtype)
    torch.mm(a, b)
    count, spent, began = 0, 0.0, time.perf_counter()
    while spent < SECONDS:
        torch.mm(a, b)
        count, spent = count + 1, time.perf_counter() - began
    return 2.0 * edge**3 * count / spent
