"""A codec case on this process: data in several places, the stage's job, and memcpy as its baseline.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bench.definitions import Work
from ciera_piper_core.exponents.backend import backend
from ciera_piper_core.exponents.layout import FloatLayout, layout_of
from suites.codec_jobs import (
    CompressJob,
    DecodeJob,
    DecompressJob,
    EncodeJob,
    HashJob,
    Job,
    MergeJob,
    OurPeer,
    ScanJob,
    SplitJob,
    copies,
)
from suites.codec_oracle import symbols_of
from suites.codec_peers import PEERS, Peer, make_peer
from suites.compute import ThreadedWorkload, threads_of
from suites.memory_copy import MemoryCopy
from suites.tensors import torch_dtype
from suites.weights import make_deltas, make_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.suite import Case, Context
    from ciera_piper_core.exponents.backend import Backend

KERNEL_JOBS: Mapping[str, Callable[[Backend, FloatLayout, torch.Tensor, int], Job]] = {
    "split": SplitJob,
    "merge": MergeJob,
    "hash": HashJob,
    "split_hash": ScanJob,
}
CODER_JOBS = {"encode": EncodeJob, "decode": DecodeJob}
TENSOR_JOBS = {"compress": CompressJob, "decompress": DecompressJob}
DATA = "codec/data"
"""In ``Context.scratch``: the last case's data; cases that follow one another mostly share it."""


class CodecWorkload(ThreadedWorkload):
    """One stage; each call works on the next place."""

    def __init__(self, case: Case, context: Context, places: int) -> None:
        super().__init__(case, context.site)
        threads = max(1, threads_of(case, context.site))
        self.work = Work(bytes=case["bytes"])
        self._job = _job(case, context, places, threads)
        self._copy = MemoryCopy(threads)
        self._targets = copies(self._job.sources[0], places)
        self._places, self._place = places, 0
        self._last_run = 0

    def prepare(self) -> None:
        self._place = (self._place + 1) % self._places
        self._job.prepare(self._place)

    def run(self) -> None:
        self._last_run = self._place
        self._job.run(self._place)

    def baseline(self) -> None:
        self._copy(self._targets[self._place], self._job.sources[self._place])

    def check(self) -> int:
        """Wrong elements that the last run left, and those of a run whose outputs were poisoned before."""
        self._copy(self._targets[self._place], self._job.sources[self._place])
        of_copy = int((self._targets[self._place].view(torch.uint8) != self._source_bytes()).sum())
        # The last place may have been the baseline's turn.
        left = self._job.wrong(self._last_run)
        self._job.poison(self._place)
        self._job.prepare(self._place)
        self._job.run(self._place)
        return of_copy + left + self._job.wrong(self._place)

    def _source_bytes(self) -> torch.Tensor:
        return self._job.sources[self._place].view(torch.uint8)

    def observations(self) -> Mapping[str, Sequence[float]]:
        return self._job.observed()

    def close(self) -> None:
        self._copy.close()
        super().close()


def _job(case: Case, context: Context, places: int, threads: int) -> Job:
    """The job of the case's stage."""
    layout = layout_of(torch_dtype(case["dtype"]))
    stage, name = case["stage"], case["backend"]
    device = torch.device(context.site.device)
    peer: Peer
    if name in PEERS:
        peer = make_peer(name, layout.dtype, threads)
        return TENSOR_JOBS[stage](peer, layout, _values(case, context, layout), places)
    ours = backend(name, isa=case["isa"] if name == "native" else None, threads=threads)
    if stage in CODER_JOBS:
        return CODER_JOBS[stage](ours, layout, _symbols(case, context, layout).to(device), places)
    values = _values(case, context, layout).to(device)
    if stage in KERNEL_JOBS:
        return KERNEL_JOBS[stage](ours, layout, values, places)
    return TENSOR_JOBS[stage](OurPeer(ours), layout, values, places)


def _values(case: Case, context: Context, layout: FloatLayout, count: int | None = None) -> torch.Tensor:
    """The case's values as integers, flat, on the CPU."""
    count = case["bytes"] // layout.value_bytes if count is None else count
    seed = context.site.seed
    weights = make_weights(case["data"], count, layout.dtype, seed, context.scratch, context.alive)
    return weights.view(layout.bits_dtype)


def _symbols(case: Case, context: Context, layout: FloatLayout) -> torch.Tensor:
    """Symbols whose plane has the case's bytes, uint8, on the CPU."""
    count = case["bytes"] * 8 // layout.exponent_bits
    key = (case["data"], count, layout.code, context.site.seed)
    known = context.scratch.get(DATA)
    if known is not None and known[0] == key:
        symbols: torch.Tensor = known[1]
        return symbols
    context.scratch.pop(DATA, None)
    if case["data"] == "delta":
        symbols = make_deltas(count, layout.exponent_bits, context.site.seed)
    else:
        symbols = torch.from_numpy(symbols_of(_values(case, context, layout, count), layout))
    context.scratch[DATA] = key, symbols
    return symbols
