"""All-to-all algorithms over even and skewed traffic: latency, bandwidth, and the share of the placement's best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from bench.definitions import ALGBW, BUSBW, LATENCY, SHARE_OF_BOUND, busbw_factor, format_bytes
from bench.suite import Axis, Metric, Suite
from ciera_piper_core.alltoall import ALGORITHMS, TRAFFIC_KINDS
from suites.communication import DTYPE, GIB, KIB, MIB, RANKS, WORKING_BYTES, sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload

ROW_BYTES = 64
"""Traffic is dealt out in rows of this size, which never part: small enough for 16 rows in 1 KiB."""


class AllToAllSuite(Suite):
    """Each algorithm on the same traffic, which the run's seed decides to the byte.

    Under skewed traffic the seed also decides which ranks are hot or idle, so it is one of the
    row's parameters.

    ``bytes`` is what each rank sends before skew takes effect. S of algbw and busbw is the largest
    that any rank sends or receives (as nccl-tests defines it for uneven exchanges), so skewed
    traffic has a larger S than ``bytes``.
    """

    name = "alltoall"
    summary = "all-to-all algorithms over ranks and sizes, uniform and skewed traffic"
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
        Axis("op", "str", "operation", ("all_to_all",)),
        Axis("algorithm", "str", "flat: one library call, every rank to every other", ALGORITHMS),
        RANKS,
        Axis(
            "traffic",
            "str",
            "uniform; zipf: the k-th most popular receiver gets a share proportional to 1/k; hot_rank: half of all "
            "goes to one rank; idle_rank: one rank sends and receives nothing",
            TRAFFIC_KINDS,
        ),
        DTYPE,
        Axis(
            "bytes",
            "bytes",
            f"what each rank sends (its share for itself included), a multiple of {ROW_BYTES}",
            minimum=1,
        ),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "op": ("all_to_all",),
            "algorithm": ("flat",),
            "ranks": (2, 4),
            "traffic": TRAFFIC_KINDS,
            "dtype": ("bfloat16",),
            "bytes": (64 * KIB, MIB, 8 * MIB),
        },
        "standard": {
            "op": ("all_to_all",),
            "algorithm": ("flat",),
            "ranks": (2, 4, 8),
            "traffic": TRAFFIC_KINDS,
            "dtype": ("bfloat16",),
            "bytes": sizes(KIB, 64 * MIB),
        },
        "full": {
            "op": ("all_to_all",),
            "algorithm": ("flat",),
            "ranks": (2, 4, 8, 16),
            "traffic": TRAFFIC_KINDS,
            "dtype": ("bfloat16",),
            "bytes": sizes(KIB, GIB, 2),
        },
    }

    def keeps(self, case: Case) -> bool:
        """Without one of two ranks, nobody is left to talk to."""
        return not (case["traffic"] == "idle_rank" and case["ranks"] <= 2)

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """The seed, where it decides who is hot or idle: another one may place the traffic on other links."""
        return {} if case["traffic"] == "uniform" else {"seed": site.seed}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        from ciera_piper_core.alltoall.traffic import MAX_ROWS

        ranks, size, most = case["ranks"], case["bytes"], MAX_ROWS * ROW_BYTES
        if ranks < 2:
            return "an all-to-all needs at least 2 ranks"
        if size % ROW_BYTES:
            below = size // ROW_BYTES * ROW_BYTES
            nearest = f"{below} or {below + ROW_BYTES}" if below else f"{ROW_BYTES}"
            return f"{size} bytes are no whole rows of {ROW_BYTES} bytes; use {nearest}"
        if size > most:
            return f"{format_bytes(size)} a rank are more than can be dealt out exactly, {format_bytes(most)}"
        if size < ranks * ROW_BYTES:
            return f"{format_bytes(size)} give {ranks} ranks less than a row of {ROW_BYTES} bytes each"
        return None

    def memory_bytes(self, case: Case, site: Site) -> int:
        rows = _rows_by_rank(case, site.seed)
        return int(rows.sum(axis=1).max() + rows.sum(axis=0).max()) * ROW_BYTES + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        import torch

        from ciera_piper_core.alltoall import make_all_to_all
        from ciera_piper_core.alltoall.flat import verify_splits
        from suites.exchange import Exchange, KeyedData, Part, filled
        from suites.placement_bound import bounded_work, least_bytes_of_traffic
        from suites.raw_transfer import node_of_rank, placement_capacity

        rank, ranks, group = context.group.rank, context.group.world, context.group.data
        assert group is not None, "a group of two ranks or more has a data group"
        rows = _rows_by_rank(case, context.site.seed)
        send_splits, recv_splits = rows[rank].tolist(), rows[:, rank].tolist()
        verify_splits(group, send_splits, recv_splits, context.site.device)

        dtype = getattr(torch, case["dtype"])
        width = ROW_BYTES // dtype.itemsize
        data = KeyedData(context.site.seed, ranks)
        send = torch.empty((sum(send_splits), width), dtype=dtype, device=context.site.device)
        received = torch.empty((sum(recv_splits), width), dtype=dtype, device=context.site.device)
        filled(send, data, rank)
        first_rows = rows[:, :rank].sum(axis=1).tolist()
        parts = [
            Part(sender, first * width, count * width)
            for sender, (first, count) in enumerate(zip(first_rows, recv_splits, strict=True))
        ]

        largest = int(max(rows.sum(axis=0).max(), rows.sum(axis=1).max())) * ROW_BYTES
        least = least_bytes_of_traffic(rows * ROW_BYTES, node_of_rank(context))
        work = bounded_work(largest, busbw_factor("all_to_all", ranks), least, placement_capacity(context))
        algorithm = make_all_to_all(case["algorithm"], group)
        return Exchange(
            lambda: algorithm.exchange(send, send_splits, recv_splits, received), received, parts, data, work
        )


def _rows_by_rank(case: Case, seed: int) -> Any:
    """Rows from each rank to each, shape ``(ranks, ranks)``, int64 (a numpy array)."""
    from ciera_piper_core.alltoall.traffic import traffic_matrix

    return traffic_matrix(case["traffic"], case["ranks"], case["bytes"] // ROW_BYTES, seed)
