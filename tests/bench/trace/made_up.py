"""Traces in Kineto's format whose breakdown is known, for the tests."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def event(category: str, name: str, start: float, duration: float, thread: int = 7, **args: Any) -> dict[str, Any]:
    """A complete event; times in microseconds."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": duration,
        "pid": 0,
        "tid": thread,
        "args": args,
    }


def kernel(name: str, start: float, duration: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    """A kernel on a stream."""
    return event("kernel", name, start, duration, stream, stream=stream, device=0, **args)


def step(number: int, start: float, duration: float) -> dict[str, Any]:
    """A step that the host marks."""
    return event("user_annotation", f"ProfilerStep#{number}", start, duration, 1)


def write(path: Path, events: Iterable[Any], rank: int | None = 0, **more: Any) -> Path:
    """A trace file, gzipped if its name says so."""
    document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": list(events), **more}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


KNOWN = (
    step(4, 1000, 100),
    kernel(GEMM, 1000, 30),
    kernel(ALL_GATHER, 1020, 20, 20),  # 10 hidden, 10 exposed
    kernel(GEMM, 1040, 10),
    event("gpu_memcpy", "Memcpy HtoD", 1045, 10, 9, stream=9),  # 5 of its own
    # 1055 to 1065: nothing
    kernel(REDUCE_SCATTER, 1065, 10, 20),
    kernel(ALL_GATHER, 1070, 10, 21),  # 5 shared with the reduce-scatter
    event("gpu_hostsync_wait", "who knows", 1080, 20, 11),  # residual
)
"""A step of 100 us: 40 computing, 25 exposed (17.5 all-gather, 7.5 reduce-scatter), 5 copying, 10 idle, 20 residual."""
