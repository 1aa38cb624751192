"""Latency of the library's all-gather against payload, dense enough in size to interpolate between."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import LATENCY
from bench.suite import Axis, Metric, Suite
from suites.collectives import DTYPE_BYTES, GIB, KIB, MIB, WORKING_BYTES, sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload


class AllGatherLatencySuite(Suite):
    """Comm(x) of a gain model: how long an all-gather takes in which every rank contributes x bytes.

    ``bytes`` is x, not S (the total over ranks) as in ``collectives``: models reason about the
    payload of a rank.
    """

    name = "allgather_latency"
    summary = "all-gather latency against the bytes that a rank contributes, dense in size"
    method_version = 1
    distributed = True
    metrics = (Metric("latency", LATENCY),)
    axes = (
        Axis("op", "str", "operation", ("all_gather",)),
        Axis("ranks", "int", "number of ranks"),
        Axis("dtype", "str", "type of the elements", tuple(DTYPE_BYTES)),
        Axis("bytes", "bytes", "payload that each rank contributes; every rank receives it from all the others"),
        Axis("algorithm", "str", "whose algorithm: library leaves it to gloo or NCCL", ("library",)),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "op": ("all_gather",),
            "ranks": (2,),
            "dtype": ("bfloat16",),
            # Dense in the middle, where latency turns into bandwidth.
            "bytes": (*sizes(KIB, 16 * KIB), *sizes(32 * KIB, 8 * MIB, 2), 16 * MIB, 64 * MIB),
            "algorithm": ("library",),
        },
        "standard": {
            "op": ("all_gather",),
            "ranks": (2, 4),
            "dtype": ("bfloat16",),
            "bytes": sizes(KIB, 128 * MIB, 2),
            "algorithm": ("library",),
        },
        "full": {
            "op": ("all_gather",),
            "ranks": (2, 4, 8),
            "dtype": ("bfloat16",),
            "bytes": sizes(KIB, GIB, 2),
            "algorithm": ("library",),
        },
    }

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["ranks"] < 2:
            return "an all-gather needs at least 2 ranks"
        if case["bytes"] % DTYPE_BYTES[case["dtype"]]:
            return f"{case['bytes']} bytes are no whole elements of {case['dtype']}"
        return None

    def memory_bytes(self, case: Case) -> int:
        return int((1 + 2 * case["ranks"]) * case["bytes"]) + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        import torch

        from bench.definitions import Work
        from suites.collective_calls import collective

        total = case["bytes"] * case["ranks"]
        return collective(case["op"], total, getattr(torch, case["dtype"]), Work(bytes=total), context)
