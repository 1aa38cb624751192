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
from bench.suite import Axis, Case, Metric, Suite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bench.suite import Context, Preset, Site, Value, Workload

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

OPS = tuple(BUSBW_FACTORS)

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int32": 4, "int64": 8}
"""The dtypes that gloo and NCCL both reduce, with the size of an element."""

WORKING_BYTES = 64 * MIB
"""Memory that a case needs beside its buffers: the library's, and the oracle's stretch of data."""

BUFFERS = {
    "all_reduce": 2.0,
    "all_gather": 2.5,
    "reduce_scatter": 2.5,
    "all_to_all": 2.0,
    "broadcast": 2.0,
    "send_recv": 2.0,
}
"""Most memory that a rank needs for buffers, its own and the library's, in units of S (measured with gloo)."""


def size_unit(op: str, ranks: int, dtype: str) -> int:
    """S must be a multiple of so many bytes: an element, or an element for each rank where S is shared out."""
    shared_out = op in ("all_gather", "reduce_scatter", "all_to_all")
    return DTYPE_BYTES[dtype] * (ranks if shared_out else 1)


def sizes(first: int, last: int, step: int = 4) -> list[int]:
    """``first``, ``first * step``, ... up to and including ``last``."""
    values = []
    while first <= last:
        values.append(first)
        first *= step
    return values


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
    metrics = (
        Metric("latency", LATENCY),
        Metric("algbw", ALGBW),
        Metric("busbw", BUSBW),
        Metric("share_of_bound", SHARE_OF_BOUND),
    )
    axes = (
        Axis("op", "str", "operation; send_recv is a ring, to the next rank and from the previous one", OPS),
        Axis("ranks", "int", "number of ranks"),
        Axis("dtype", "str", "type of the elements", tuple(DTYPE_BYTES)),
        Axis(
            "bytes",
            "bytes",
            "S: the total over ranks for all_gather and reduce_scatter, what a rank sends for all_to_all (its share "
            "for itself included), the buffer for all others",
        ),
        Axis("algorithm", "str", "whose algorithm: library leaves it to gloo or NCCL", ("library",)),
        Axis("traffic", "str", "how evenly the data is spread", ("uniform",)),
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
        return cases if "bytes" in overrides else _fitted(cases)

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["ranks"] < 2:
            return "a collective operation needs at least 2 ranks"
        unit = size_unit(case["op"], case["ranks"], case["dtype"])
        if case["bytes"] % unit:
            below = case["bytes"] // unit * unit
            nearest = f"{below} or {below + unit}" if below else f"{unit}"
            return (
                f"{case['bytes']} bytes do not divide into units of {unit} (elements of {case['dtype']}, "
                f"{unit // DTYPE_BYTES[case['dtype']]} at a time); use {nearest}"
            )
        return None

    def memory_bytes(self, case: Case) -> int:
        return int(BUFFERS[case["op"]] * case["bytes"]) + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        import torch

        from suites.collective_calls import collective
        from suites.placement_bound import bounded_work, least_bytes
        from suites.raw_transfer import node_of_rank, placement_capacity

        op, size = case["op"], case["bytes"]
        least = least_bytes(op, size, node_of_rank(context))
        work = bounded_work(size, busbw_factor(op, case["ranks"]), least, placement_capacity(context))
        return collective(op, size, getattr(torch, case["dtype"]), work, context)


def _fitted(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases with sizes rounded down to what can be shared out (up to the least), each once."""
    seen = set()
    for case in cases:
        unit = size_unit(case["op"], case["ranks"], case["dtype"])
        fitted = Case({**case.params, "bytes": max(unit, case["bytes"] // unit * unit)})
        if fitted.id not in seen:
            seen.add(fitted.id)
            yield fitted
