"""Latency of the library's all-gather against size, dense enough in size to interpolate between."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import LATENCY
from bench.suite import Axis, Metric
from suites.communication import (
    DTYPE,
    EVEN_TRAFFIC,
    GIB,
    KIB,
    LIBRARY,
    MIB,
    RANKS,
    CollectiveSuite,
    sizes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Value, Workload


class AllGatherLatencySuite(CollectiveSuite):
    """Comm(x) of a gain model: how long an all-gather takes in which every rank contributes x bytes.

    ``bytes`` is S, the total over ranks, as in ``collectives``; x is in the row too, as
    ``bytes_per_rank``.
    """

    name = "allgather_latency"
    summary = "all-gather latency against size, dense in size"
    method_version = 1
    metrics = (Metric("latency", LATENCY),)
    axes = (
        Axis("op", "str", "operation", ("all_gather",)),
        RANKS,
        DTYPE,
        Axis("bytes", "bytes", "S: the total over ranks; each rank contributes its part of it", minimum=1),
        LIBRARY,
        EVEN_TRAFFIC,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "op": ("all_gather",),
            "ranks": (2,),
            "dtype": ("bfloat16",),
            # Dense in the middle, where latency turns into bandwidth.
            "bytes": (*sizes(2 * KIB, 32 * KIB), *sizes(64 * KIB, 16 * MIB, 2), 32 * MIB, 128 * MIB),
            "algorithm": ("library",),
            "traffic": ("uniform",),
        },
        "standard": {
            "op": ("all_gather",),
            "ranks": (2, 4),
            "dtype": ("bfloat16",),
            "bytes": sizes(2 * KIB, 256 * MIB, 2),
            "algorithm": ("library",),
            "traffic": ("uniform",),
        },
        "full": {
            "op": ("all_gather",),
            "ranks": (2, 4, 8),
            "dtype": ("bfloat16",),
            "bytes": sizes(2 * KIB, 2 * GIB, 2),
            "algorithm": ("library",),
            "traffic": ("uniform",),
        },
    }

    def setup(self, case: Case, context: Context) -> Workload:
        import torch

        from bench.definitions import Work
        from suites.collective_calls import collective

        size = case["bytes"]
        return collective(case["op"], size, getattr(torch, case["dtype"]), Work(bytes=size), context)
