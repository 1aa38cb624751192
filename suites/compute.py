"""What the compute suites have in common: metric, threads, ceiling, and the rule for cases that would take too long."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from bench.definitions import THROUGHPUT, Work
from bench.suite import Axis, Metric, Suite, Workload
from suites.tensors import ITEM_BYTES, dtype_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.definitions import Ceiling
    from bench.suite import Case, Site, Value

LONGEST_ITERATION_S = 0.5
"""A case whose iteration needs more than this even at the device's peak is skipped: peaks are
generous bounds, so such an iteration takes some seconds."""

ROTATED_BYTES = 512 * 2**20
"""Data that must come from memory rotates through buffers of this size in total, or more."""

DTYPES = ("bfloat16", "float16", "float32")
DTYPE = Axis("dtype", "str", "type of inputs and outputs; products are summed in float32", DTYPES)
THREADS = Axis("threads", "int", "CPU threads that compute; 0: all cores that the process may use", minimum=0)

DIRECTION = Axis(
    "direction",
    "str",
    "forward alone, or with the gradients of input and weights (three times the operations)",
    ("forward", "forward_backward"),
)


def direction_factor(case: Case) -> int:
    """Operations of the case's direction over those of a forward pass: a backward pass has twice as many."""
    return 3 if case["direction"] == "forward_backward" else 1


def threads_of(case: Case, site: Site) -> int:
    """CPU threads that the case computes with; 0 on a GPU."""
    return 0 if site.device == "cuda" else int(case["threads"]) or site.cores


def threads_reason(case: Case, site: Site) -> str | None:
    """Why the case's threads cannot be had here, or None."""
    if threads_of(case, site) <= site.cores:
        return None
    return f"asks for {case['threads']} threads, the process may use {site.cores} core(s)"


def peak_of(case: Case, site: Site) -> Ceiling | None:
    """The most that the device can do in the case's dtype; all kinds of float8 have one."""
    dtype = str(case["dtype"])
    return site.peak_tflops.get("float8" if dtype.startswith("float8") else dtype)


def rotation(bytes_each: int) -> int:
    """How many copies of data of this size to rotate through, so that each comes from memory."""
    return -(-ROTATED_BYTES // bytes_each)


class ThreadedWorkload(Workload):
    """A workload that computes with a set number of CPU threads until it is closed."""

    def __init__(self, case: Case, site: Site) -> None:
        import torch

        self._threads_before = torch.get_num_threads()
        if threads := threads_of(case, site):
            torch.set_num_threads(threads)

    def close(self) -> None:
        import torch

        torch.set_num_threads(self._threads_before)


class ComputeSuite(Suite):
    """A suite of matrix products on one process: cases have a ``dtype`` and ``threads``."""

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("throughput", THROUGHPUT),)

    @abstractmethod
    def flops(self, case: Case) -> int:
        """Operations of the matrix products of one iteration."""

    def work(self, case: Case, site: Site) -> Work:
        """The work of one iteration, with the device's peak as the ceiling of its throughput."""
        peak = peak_of(case, site)
        return Work(flops=self.flops(case), ceilings={"throughput": peak} if peak else {})

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        return {"threads": threads_of(case, site)}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        return (
            threads_reason(case, site) or dtype_reason(case["dtype"], site.device) or self._too_long_reason(case, site)
        )

    def _too_long_reason(self, case: Case, site: Site) -> str | None:
        peak = peak_of(case, site)
        if peak is None or self.flops(case) <= peak.value * 1e12 * LONGEST_ITERATION_S:
            return None
        return (
            f"an iteration is {self.flops(case) / 1e12:.3g} TFLOP: over {LONGEST_ITERATION_S:g} s even at"
            f" {peak.value:.3g} TFLOP/s ({peak.source})"
        )


def item_bytes(case: Case) -> int:
    """Bytes of an element of the case's dtype."""
    return ITEM_BYTES[case["dtype"]]
