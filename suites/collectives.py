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
from bench.suite import Axis, Metric, Suite
from suites.communication import (
    DTYPE,
    EVEN_TRAFFIC,
    GIB,
    KIB,
    LIBRARY,
    MIB,
    RANKS,
    bytes_per_rank,
    collective_memory_bytes,
    collective_reason,
    fitted,
    sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload

OPS = tuple(BUSBW_FACTORS)


class CollectivesSuite(Suite):
    """Each operation as the library does it, out of place where it can, on every rank at once.

    ``bytes`` is S as nccl-tests defines it, and the true one: sizes that cannot be shared out among
    the ranks are never measured. Preset sizes are fitted to the ranks when the cases are made
    (rounded down, with 3 ranks for example); a size asked for by ``--set bytes`` is skipped instead.
    """

    name = "collectives"
    summary = "collective operations: latency, algbw, busbw and the share of what the placement could do"
    method_version = 1
    distributed = True
    characterizes = True
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

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        cases = super().cases(preset, overrides)
        return cases if "bytes" in overrides else fitted(cases)

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        return bytes_per_rank(case)

    def skip_reason(self, case: Case, site: Site) -> str | None:
        return collective_reason(case)

    def memory_bytes(self, case: Case, site: Site) -> int:
        return collective_memory_bytes(case)

    def setup(self, case: Case, context: Context) -> Workload:
        import torch

        from suites.collective_calls import collective
        from suites.placement_bound import bounded_work, least_bytes
        from suites.raw_transfer import node_of_rank, placement_capacity

        op, size = case["op"], case["bytes"]
        least = least_bytes(op, size, node_of_rank(context))
        work = bounded_work(size, busbw_factor(op, case["ranks"]), least, placement_capacity(context))
        return collective(op, size, getattr(torch, case["dtype"]), work, context)
