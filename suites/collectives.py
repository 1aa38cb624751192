"""Collective operations of the communication library: latency, bandwidth, and the share of the placement's best."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import (
    ALGBW,
    BUSBW,
    BUSBW_FACTORS,
    LATENCY,
    SHARE_OF_BOUND,
    busbw_factor,
)
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

OPS = tuple(BUSBW_FACTORS)


class CollectivesSuite(CollectiveSuite):
    """Each operation as the library does it, out of place where it can, on every rank at once.

    ``bytes`` is S as nccl-tests defines it, and the true one: sizes that cannot be shared out among
    the ranks are never measured.
    """

    name = "collectives"
    summary = "collective operations: latency, algbw, busbw and the share of what the placement could do"
    method_version = 1
    metrics = (
        Metric("latency", LATENCY),
        Metric("algbw", ALGBW),
        Metric("busbw", BUSBW),
        Metric("share_of_bound", SHARE_OF_BOUND),
    )
    axes = (
        Axis("op", "str", "operation; send_recv is a ring, to the next rank and from the previous one", OPS),
        RANKS,
        DTYPE,
        Axis(
            "bytes",
            "bytes",
            "S: the total over ranks for all_gather and reduce_scatter, what a rank sends for all_to_all (its share "
            "for itself included), the buffer for all others",
            minimum=1,
        ),
        LIBRARY,
        EVEN_TRAFFIC,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "op": OPS,
            "ranks": (2,),
            "dtype": ("float32",),
            "bytes": (KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB),
            "algorithm": ("library",),
            "traffic": ("uniform",),
        },
        "standard": {
            "op": OPS,
            "ranks": (2, 4),
            "dtype": ("float32", "bfloat16", "int8"),
            "bytes": sizes(KIB, 64 * MIB),
            "algorithm": ("library",),
            "traffic": ("uniform",),
        },
        "full": {
            "op": OPS,
            "ranks": (2, 4, 8),
            "dtype": ("float32", "bfloat16", "int8"),
            "bytes": sizes(KIB, GIB, 2),
            "algorithm": ("library",),
            "traffic": ("uniform",),
        },
    }

    def setup(self, case: Case, context: Context) -> Workload:
        import torch

        from suites.collective_calls import collective
        from suites.placement_bound import bounded_work, least_bytes
        from suites.raw_transfer import node_of_rank, placement_capacity

        op, size = case["op"], case["bytes"]
        least = least_bytes(op, size, node_of_rank(context))
        work = bounded_work(size, busbw_factor(op, case["ranks"]), least, placement_capacity(context))
        return collective(op, size, getattr(torch, case["dtype"]), work, context)
