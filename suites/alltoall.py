"""All-to-all algorithms, and dispatch of routed tokens, over even and skewed traffic: time, and speed over flat."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

from bench.definitions import (
    ALGBW,
    BUSBW,
    LATENCY,
    SHARE_OF_BOUND,
    Definition,
    busbw_factor,
    define,
    format_bytes,
)
from bench.errors import UsageError
from bench.suite import Axis, Case, Metric, Suite
from ciera_piper_core.alltoall import ALGORITHMS, REPLAY, ROTATING, TRAFFIC_KINDS, known_traffic
from suites.communication import DTYPE, DTYPE_BYTES, GIB, KIB, MIB, RANKS, WORKING_BYTES, sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bench.suite import Context, Preset, Site, Value, Workload

ROW_BYTES = 64
"""Traffic is dealt out in rows of this size, which never part: small enough for 16 rows in 1 KiB."""

TOP_K, HIDDEN, EXPERTS_PER_RANK = 8, 1024, 8
"""Of routed tokens: choices, elements, and experts to choose from."""

OPERATIONS = ("all_to_all", "dispatch", "combine")
DEDUP = "dedup"
HIERARCHICAL = tuple(name for name in ALGORITHMS if name not in ("flat", "auto"))

SPEEDUP_OVER_FLAT = define(
    Definition(
        "speedup/over-flat-v1",
        "ratio",
        "higher",
        "Duration of the flat algorithm over the algorithm's own, on the same traffic; both are timed in every "
        "iteration and take turns at going first.",
        against_baseline=lambda seconds, baseline, work: baseline / seconds,
    )
)
SENT_SHARE = define(
    Definition(
        "sent_share/dispatch-v1",
        "ratio",
        "lower",
        "Bytes that a dispatch sends between nodes (within the node where there is only one), routing included, over "
        "those of one row for each choice whose expert is there; of all ranks together.",
    )
)

MEASURED = (
    Metric("latency", LATENCY),
    Metric("algbw", ALGBW),
    Metric("busbw", BUSBW),
    Metric("share_of_bound", SHARE_OF_BOUND),
)
OVER_FLAT = Metric("speedup_over_flat", SPEEDUP_OVER_FLAT)
SHARE = Metric("sent_share", SENT_SHARE)


class AllToAllSuite(Suite):
    """Each algorithm on the same traffic, which the run's seed decides to the byte.

    Under skewed traffic the seed also decides which ranks are hot or idle, so it is one of the
    row's parameters.

    ``bytes`` is what each rank sends before skew takes effect; of routed tokens, a row for each
    choice counts. S of algbw and busbw is the largest that any rank sends or receives (as nccl-tests
    defines it for uneven exchanges), so skewed traffic has a larger S than ``bytes``.
    """

    name = "alltoall"
    summary = "all-to-all algorithms over ranks and sizes, uniform and skewed traffic, and dispatch of routed tokens"
    method_version = 2
    distributed = True
    characterizes = True
    metrics = (*MEASURED, OVER_FLAT, SHARE)
    axes = (
        Axis(
            "op",
            "str",
            f"all_to_all; dispatch of tokens to the ranks of {TOP_K} experts each; combine of what they return",
            OPERATIONS,
        ),
        Axis(
            "algorithm",
            "str",
            "flat: one library call, every rank to every other; two_phase, halo_*: by way of neighbours; auto: the "
            "fastest by measurement; dedup (dispatch and combine only): a token crosses to each node once",
            (*ALGORITHMS, DEDUP),
        ),
        RANKS,
        Axis(
            "traffic",
            "str",
            "uniform; zipf: the k-th most popular receiver (of routed tokens: expert) gets a share proportional to "
            "1/k; hot_rank: half of all goes to one rank; idle_rank: one rank sends and receives nothing; "
            "rotating_hot_rank: hot_rank, another one each time; replay:FILE: the steps of a router trace "
            "(the last two for all_to_all only)",
        ),
        DTYPE,
        Axis(
            "bytes",
            "bytes",
            f"what each rank sends (its share for itself included), a multiple of {ROW_BYTES}; "
            f"for dispatch and combine, of whole tokens",
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
    further: ClassVar[Mapping[Preset, Sequence[Mapping[str, Sequence[Value]]]]] = {
        "quick": (),
        "standard": (
            {
                "op": ("all_to_all",),
                "algorithm": HIERARCHICAL,
                "ranks": (8,),
                "traffic": ("uniform", "idle_rank", "hot_rank"),
                "dtype": ("bfloat16",),
                "bytes": sizes(KIB, MIB, 16),
            },
            {
                "op": ("dispatch",),
                "algorithm": ("flat", DEDUP),
                "ranks": (8,),
                "traffic": ("uniform", "zipf"),
                "dtype": ("bfloat16",),
                "bytes": (MIB, 8 * MIB),
            },
        ),
        "full": (
            {
                "op": ("all_to_all",),
                "algorithm": (*HIERARCHICAL, "auto"),
                "ranks": (4, 8, 16),
                "traffic": ("uniform", "zipf", "hot_rank", "rotating_hot_rank", "idle_rank"),
                "dtype": ("bfloat16",),
                "bytes": sizes(KIB, 64 * MIB),
            },
            {
                "op": ("dispatch", "combine"),
                "algorithm": ("flat", DEDUP),
                "ranks": (4, 8, 16),
                "traffic": TRAFFIC_KINDS,
                "dtype": ("bfloat16",),
                "bytes": sizes(MIB, 64 * MIB),
            },
        ),
    }
    """More blocks of cases beside a preset's, unless operations or algorithms are asked for by name."""

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        """A preset's cases and its further blocks.

        Raises:
            UsageError: an unknown traffic.
        """
        for traffic in overrides.get("traffic", ()):
            if not known_traffic(str(traffic)):
                known = ", ".join((*TRAFFIC_KINDS, ROTATING))
                raise UsageError(f"unknown value for traffic: {traffic!r}; known: {known}, and {REPLAY}FILE")
        blocks = () if {"op", "algorithm"} & overrides.keys() else self.further[preset]
        seen = set()
        for case in itertools.chain(super().cases(preset, overrides), *(self._block(b, overrides) for b in blocks)):
            if case.id not in seen:
                seen.add(case.id)
                yield case

    def _block(self, block: Mapping[str, Sequence[Value]], overrides: Mapping[str, Sequence[Value]]) -> Iterator[Case]:
        values = {**block, **overrides}
        for point in itertools.product(*values.values()):
            case = Case(dict(zip(values, point, strict=True)))
            if self.keeps(case):
                yield case

    def keeps(self, case: Case) -> bool:
        """Without one of two ranks, nobody is left to talk to; tokens are routed anew for each kind, not replayed."""
        if case["traffic"] == "idle_rank" and case["ranks"] <= 2:
            return False
        if case["op"] == "all_to_all":
            return bool(case["algorithm"] != DEDUP)
        return case["traffic"] in TRAFFIC_KINDS

    def metrics_for(self, case: Case) -> tuple[Metric, ...]:
        """Flat is not compared with itself; only dispatchers know what they left out."""
        over_flat = () if case["algorithm"] == "flat" else (OVER_FLAT,)
        return (*MEASURED, *over_flat, *(() if case["op"] == "all_to_all" else (SHARE,)))

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """The seed, where it decides who is hot or idle: another one may place the traffic on other links.

        Of routed tokens, how they are routed; of a replay, the trace's digest.
        """
        if case["op"] != "all_to_all":
            routing = {"top_k": TOP_K, "hidden": HIDDEN, "experts": EXPERTS_PER_RANK * case["ranks"]}
            return {**routing, "seed": site.seed}
        if (trace := _trace(case)) is not None:
            from ciera_piper_core.alltoall.router_trace import read_trace

            try:
                return {"trace": read_trace(trace).digest}
            except ValueError:
                return {}
        return {} if case["traffic"] == "uniform" else {"seed": site.seed}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        from ciera_piper_core.alltoall.router_trace import read_trace
        from ciera_piper_core.alltoall.traffic import MAX_ROWS

        ranks, size, most = case["ranks"], case["bytes"], MAX_ROWS * ROW_BYTES
        if ranks < 2:
            return "an all-to-all needs at least 2 ranks"
        if site.nodes == 1 and case["algorithm"] in HIERARCHICAL:
            return f"all ranks share one node, where {case['algorithm']} is the same as flat; see `--lab`"
        unit = ROW_BYTES if case["op"] == "all_to_all" else _token_bytes(case)
        if size % unit:
            below = size // unit * unit
            nearest = f"{below} or {below + unit}" if below else f"{unit}"
            what = "rows" if case["op"] == "all_to_all" else f"tokens of {TOP_K} copies"
            return f"{size} bytes are no whole {what} of {unit} bytes; use {nearest}"
        if size > most:
            return f"{format_bytes(size)} a rank are more than can be dealt out exactly, {format_bytes(most)}"
        if size < ranks * ROW_BYTES:
            return f"{format_bytes(size)} give {ranks} ranks less than a row of {ROW_BYTES} bytes each"
        if (trace := _trace(case)) is not None:
            try:
                experts = read_trace(trace).counts.shape[2]
            except ValueError as error:
                return str(error)
            if experts < ranks:
                return f"a trace of {experts} experts cannot be replayed on {ranks} ranks"
        return None

    def memory_bytes(self, case: Case, site: Site) -> int:
        if case["op"] != "all_to_all":
            # Half of all may go to one rank; sums are taken in float32, and the baseline has its own.
            received = case["bytes"] * (1 + case["ranks"] / 2 * (case["traffic"] != "uniform"))
            return int(6 * received) + WORKING_BYTES
        rows = _traffic(case, site.seed)
        # Hierarchical algorithms keep up to three buffers, and what flat delivers is kept apart.
        copies = 1 if case["algorithm"] == "flat" else 4
        return int(rows.sum(axis=2).max() + copies * rows.sum(axis=1).max()) * ROW_BYTES + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        return _exchange(case, context) if case["op"] == "all_to_all" else _dispatch(case, context)


def _exchange(case: Case, context: Context) -> Workload:
    """The workload of an all-to-all (collective)."""
    import torch

    from ciera_piper_core.alltoall import make_all_to_all
    from ciera_piper_core.alltoall.counts import verify_splits
    from ciera_piper_core.alltoall.placement import placement_from_nodes
    from suites.exchange import KeyedData
    from suites.placement_bound import bounded_work, least_bytes_of_traffic
    from suites.raw_transfer import node_of_rank, placement_capacity
    from suites.stepped_exchange import SteppedExchange, steps_of_traffic

    rank, ranks, group = context.group.rank, context.group.world, context.group.data
    assert group is not None, "a group of two ranks or more has a data group"
    traffic = _traffic(case, context.site.seed)
    for rows in traffic:
        verify_splits(group, rows[rank].tolist(), rows[:, rank].tolist(), context.site.device)

    nodes = node_of_rank(context)
    largest = int(max(traffic.sum(axis=1).max(), traffic.sum(axis=2).max())) * ROW_BYTES
    bounds = [least_bytes_of_traffic(rows * ROW_BYTES, nodes) for rows in traffic]
    # Of steps that differ, the one that could be fastest bounds them all.
    least = min(bounds, key=lambda bound: (bound.node_link, bound.rank, bound.total))
    dtype = getattr(torch, case["dtype"])
    width = ROW_BYTES // dtype.itemsize
    placement = placement_from_nodes(nodes, "the launcher")
    return SteppedExchange(
        algorithm=make_all_to_all(case["algorithm"], group, placement),
        flat=None if case["algorithm"] == "flat" else make_all_to_all("flat", group, placement),
        steps=steps_of_traffic(traffic, rank, width),
        width=width,
        dtype=dtype,
        device=context.site.device,
        data=KeyedData(context.site.seed, ranks),
        rank=rank,
        work=bounded_work(largest, busbw_factor("all_to_all", ranks), least, placement_capacity(context)),
    )


def _dispatch(case: Case, context: Context) -> Workload:
    """The workload of a dispatch, or of a combine (collective)."""
    import torch

    from ciera_piper_core.alltoall import make_all_to_all
    from ciera_piper_core.alltoall.dedup import DedupDispatch
    from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
    from ciera_piper_core.alltoall.placement import placement_from_nodes
    from ciera_piper_core.alltoall.routing_traffic import routed_ranks
    from suites.dispatch_exchange import DispatchWorkload, least_bytes_of_dispatch, rows_between
    from suites.placement_bound import bounded_work
    from suites.raw_transfer import node_of_rank, placement_capacity

    rank, ranks, group = context.group.rank, context.group.world, context.group.data
    assert group is not None, "a group of two ranks or more has a data group"
    seed, name = context.site.seed, case["algorithm"]
    tokens = case["bytes"] // _token_bytes(case)
    experts = EXPERTS_PER_RANK * ranks
    tables = [routed_ranks(case["traffic"], one, ranks, tokens, TOP_K, experts, seed) for one in range(ranks)]
    nodes, row_bytes = node_of_rank(context), _token_bytes(case) // TOP_K
    between = rows_between(tables)
    largest = int(max(between.sum(axis=0).max(), between.sum(axis=1).max())) * row_bytes
    least = least_bytes_of_dispatch(tables, row_bytes, nodes)
    placement = placement_from_nodes(nodes, "the launcher")
    flat = FlatDispatch(group, placement, make_all_to_all("flat", group, placement))
    if name == "flat":
        dispatcher: Any = flat
    elif name == DEDUP:
        dispatcher = DedupDispatch(group, placement)
    else:
        dispatcher = FlatDispatch(group, placement, make_all_to_all(name, group, placement))
    return DispatchWorkload(
        combines=case["op"] == "combine",
        dispatcher=dispatcher,
        flat=None if name == "flat" else flat,
        tables=tables,
        rank=rank,
        width=HIDDEN,
        dtype=getattr(torch, case["dtype"]),
        device=context.site.device,
        seed=seed,
        work=bounded_work(largest, busbw_factor("all_to_all", ranks), least, placement_capacity(context)),
        gather=context.group.gather_objects,
    )


def _token_bytes(case: Case) -> int:
    """A token with a copy for each of its choices."""
    return TOP_K * HIDDEN * DTYPE_BYTES[case["dtype"]]


def _traffic(case: Case, seed: int) -> Any:
    """Rows from each rank to each in each step, shape ``(steps, ranks, ranks)``, int64 (a numpy array)."""
    from ciera_piper_core.alltoall.traffic_steps import traffic_steps

    return traffic_steps(case["traffic"], case["ranks"], case["bytes"] // ROW_BYTES, seed)


def _trace(case: Case) -> Any:
    """The path of the trace that is replayed, or None."""
    from pathlib import Path

    return Path(case["traffic"].removeprefix(REPLAY)) if case["traffic"].startswith(REPLAY) else None
