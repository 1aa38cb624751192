"""Memory bandwidth beyond the caches: copy and triad, as in STREAM."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import MEMORY_BANDWIDTH, Work
from bench.suite import Axis, Metric, Suite
from suites.compute import THREADS, ThreadedWorkload, threads_of, threads_reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from bench.suite import Case, Context, Preset, Site, Value

ARRAYS = {"copy": 2, "triad": 3}
"""Arrays that one pass of the kernel reads or writes."""

FLOAT32_BYTES = 4
ASSUMED_CACHE_BYTES = 256 * 2**20
"""Stands for the last level cache where its size cannot be read: more than nearly all have."""

LEAST_CUDA_CACHE_BYTES = 2**30
"""A GPU's cache counts as no smaller: four times the true size of some pass in the time that a launch takes."""

SCALAR = 3
MODULUS = 251
PERIOD = MODULUS * 4096
"""Inputs are ``index modulo MODULUS``, laid down a period at a time: no power of two repeats it."""


def array_bytes(case: Case, site: Site) -> int:
    """Bytes of each array of the kernel, whole elements; all arrays are so many times the last level cache."""
    cache_bytes = site.last_level_cache_bytes or ASSUMED_CACHE_BYTES
    if site.device == "cuda":
        cache_bytes = max(cache_bytes, LEAST_CUDA_CACHE_BYTES)
    count = int(case["cache_multiple"]) * cache_bytes // ARRAYS[case["kernel"]] // FLOAT32_BYTES
    return count * FLOAT32_BYTES


class MemorySuite(Suite):
    """One pass over arrays that no cache can hold."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "memory bandwidth beyond the caches: copy and triad"
    method_version: ClassVar[int] = 1
    characterizes: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("bandwidth", MEMORY_BANDWIDTH),)
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("kernel", "str", "copy: a = b; triad: a = b + 3 c; float32", tuple(ARRAYS)),
        Axis(
            "cache_multiple",
            "int",
            "size of all arrays together, in last level caches (a GPU's counts as 1 GiB at least); with less than 4, "
            "the cache would be measured",
            minimum=4,
        ),
        THREADS,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {"kernel": ("copy", "triad"), "cache_multiple": (4,), "threads": (0, 1)},
        "standard": {"kernel": ("copy", "triad"), "cache_multiple": (4,), "threads": (0, 1)},
        "full": {"kernel": ("copy", "triad"), "cache_multiple": (4, 12), "threads": (0, 1)},
    }

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        return {"threads": threads_of(case, site), "array_bytes": array_bytes(case, site)}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        return threads_reason(case, site)

    def memory_bytes(self, case: Case, site: Site) -> int:
        return ARRAYS[case["kernel"]] * array_bytes(case, site)

    def setup(self, case: Case, context: Context) -> _Pass:
        return _Pass(case, context.site)


class _Pass(ThreadedWorkload):
    """One pass of the kernel. The inputs are whole numbers, so that every sum is exact in float32."""

    def __init__(self, case: Case, site: Site) -> None:
        import torch

        super().__init__(case, site)
        arrays = ARRAYS[case["kernel"]]
        each = array_bytes(case, site)
        self.work = Work(bytes=arrays * each)
        # NaN until the kernel overwrites it; writing also makes the operating system map the pages.
        self._a = torch.full((each // FLOAT32_BYTES,), torch.nan, device=site.device)
        self._inputs = [_whole_numbers(offset, self._a) for offset in range(arrays - 1)]

    def run(self) -> None:
        import torch

        if len(self._inputs) == 1:
            self._a.copy_(self._inputs[0])
        else:
            torch.add(*self._inputs, alpha=SCALAR, out=self._a)

    def check(self) -> int:
        """Elements that are not exactly what the kernel must give, which is computed in integers."""
        import torch

        expected = _period(0, self._a)
        if len(self._inputs) == 2:
            expected = expected + SCALAR * _period(1, self._a)
        wanted = expected.to(self._a.dtype)
        return sum(int((part != wanted[: len(part)]).sum()) for part in torch.split(self._a, PERIOD))


def _whole_numbers(offset: int, like: torch.Tensor) -> torch.Tensor:
    """``(index + offset) % MODULUS`` in the type and length of ``like``."""
    import torch

    period = _period(offset, like).to(like.dtype)
    numbers = torch.empty_like(like)
    for part in torch.split(numbers, PERIOD):
        part.copy_(period[: len(part)])
    return numbers


def _period(offset: int, like: torch.Tensor) -> torch.Tensor:
    """One period of an input, as int64 on the device of ``like``."""
    import torch

    return (torch.arange(PERIOD, device=like.device) + offset) % MODULUS
