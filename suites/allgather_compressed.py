"""The compressed all-gather against the library's plain one: sizes, change rates, modes, ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import LATENCY
from bench.suite import Axis, Metric, Suite
from suites.coding_metrics import BYTE_RATIO, SPEEDUP_OVER_PLAIN
from suites.communication import KIB, MIB, RANKS, WORKING_BYTES, sizes
from suites.compute import DTYPES
from suites.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload

MODES = ("block", "delta", "auto")
SELECTIONS = ("all", "auto", "none")
SPREADS = ("scattered", "clustered")

OF_ALL_SHARDS, OF_ONE_SHARD = 5, 12
"""Most memory that a rank needs, in units of all shards together and of its own one (measured, with calibration)."""


class CompressedAllGatherSuite(Suite):
    """One gather again and again, whose shards change at a known rate in between; the baseline is the library's.

    ``bytes`` is a rank's shard: what the rank contributes.
    """

    name: ClassVar[str] = "allgather_compressed"
    summary: ClassVar[str] = "compressed all-gather against the plain one: latency, speedup, bytes"
    method_version: ClassVar[int] = 2
    distributed: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("latency", LATENCY),
        Metric("speedup_over_plain", SPEEDUP_OVER_PLAIN),
        Metric("byte_ratio", BYTE_RATIO),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        RANKS,
        Axis("dtype", "str", "type of the values", DTYPES),
        Axis("bytes", "bytes", "a rank's shard, plain", minimum=4),
        Axis("mode", "str", "how changed exponents are coded: themselves, their differences, the smaller", MODES),
        Axis("change_rate", "float", "share of exponents that differ from the last gather's, 0 to 1", minimum=0),
        Axis("spread", "str", "changed exponents anywhere, or all those of some blocks", SPREADS),
        Axis(
            "selection",
            "str",
            "all: the shard is compressed; auto: where a calibration says that it gains; none: never",
            SELECTIONS,
        ),
        Axis(
            "layers", "int", "gathers a run; more than one: the next one is under way while one is awaited", minimum=1
        ),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "ranks": (2,),
            "dtype": ("bfloat16",),
            "bytes": (64 * KIB, MIB, 16 * MIB),
            "mode": ("auto",),
            "change_rate": (0.0, 0.01, 1.0),
            "spread": ("scattered",),
            "selection": ("all", "auto"),
            "layers": (1,),
        },
        "standard": {
            "ranks": (2, 4),
            "dtype": ("bfloat16",),
            "bytes": (16 * KIB, 256 * KIB, 4 * MIB, 16 * MIB),
            "mode": MODES,
            "change_rate": (0.0, 0.01, 0.1, 1.0),
            "spread": SPREADS,
            "selection": SELECTIONS,
            "layers": (1,),
        },
        "full": {
            "ranks": (2, 4, 8),
            "dtype": DTYPES,
            "bytes": sizes(4 * KIB, 64 * MIB),
            "mode": MODES,
            "change_rate": (0.0, 0.001, 0.01, 0.1, 0.5, 1.0),
            "spread": SPREADS,
            "selection": SELECTIONS,
            "layers": (1, 4),
        },
    }

    def keeps(self, case: Case) -> bool:
        """One case where others would be the same: nothing changes, everything does, or nothing is coded."""
        if case["selection"] == "none":
            return bool(case["mode"] == "auto" and case["change_rate"] == 0 and case["spread"] == "scattered")
        return bool(0 < case["change_rate"] < 1 or case["spread"] == "scattered")

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """What codes, since what is measured depends on it."""
        from ciera_piper_core.exponents.backend import default_backend

        backend = default_backend(site.device, threads=site.cores)
        return {"codec": f"{backend.name} {backend.isa}".strip(), "threads": backend.threads}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["ranks"] < 2:
            return "a collective operation needs at least 2 ranks"
        if case["change_rate"] > 1:
            return f"a change rate is at most 1, not {case['change_rate']:g}"
        if case["bytes"] % ITEM_BYTES[case["dtype"]]:
            return f"{case['bytes']} bytes are no whole number of {case['dtype']} values"
        return None

    def memory_bytes(self, case: Case, site: Site) -> int:
        of_all = OF_ALL_SHARDS * int(case["ranks"]) + OF_ONE_SHARD
        return of_all * int(case["bytes"]) * int(case["layers"]) + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        from suites.compressed_gathers import CompressedGathers

        return CompressedGathers(case, context)
