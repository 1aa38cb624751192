"""Rows of a made-up machine, the same on every call: all suites, outcomes and places that a report must show."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any

from bench.definitions import ALGBW, BUSBW, LATENCY, MEMORY_BANDWIDTH, SHARE_OF_BOUND, THROUGHPUT, busbw_factor
from bench.store.row import Row, RunRecord, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.definitions import Definition

RUN_ID = "20260314T091500-5a3b1c2d"
LAB = "nodes=4,ranks-per-node=2,rate=1gbit"
LAB_RUN_ID = "20260314T093000-77ee0102"
STACK = """rank 0 (pid 4101): MainThread (idle): all_reduce (torch/distributed/distributed_c10d.py:3090)
    run (suites/collectives.py:141)
rank 3 (pid 4104): no stack: the process has ended"""
SIZES = [1 << exponent for exponent in range(10, 26)]


def row(
    params: dict[str, Any],
    metric: str,
    definition: Definition,
    *,
    suite: str = "third_party",
    value: float | None = None,
    status: Status = "ok",
    reason: str = "",
    stop_reason: str = "converged",
    noise: float = 0.02,
    run_id: str = RUN_ID,
    row_id: int = 0,
    method_version: int = 1,
) -> Row:
    """One row; an ok one gets 24 samples that scatter by ``noise`` around ``value``."""
    case = ",".join(f"{name}={item}" for name, item in sorted(params.items()))
    made = Row(
        run_id=run_id,
        row_id=row_id,
        suite=suite,
        method_version=method_version,
        case=case,
        params=params,
        metric=metric,
        unit=definition.unit,
        better=definition.better,
        definition=definition.id,
        value=None if value is None else float(f"{value:.7g}"),
        status=status,
        reason=reason,
        seed=7,
        started_at="2026-03-14T09:15:02.125+00:00",
    )
    if value is None:
        return made
    dice = random.Random(f"{suite} {case} {metric}")
    made.samples = [value * (1 + noise * dice.gauss(0, 1)) for _ in range(24)]
    made.n, made.warmup, made.stop_reason, made.wrong = 24, 3, stop_reason, 0
    ranks = int(params.get("ranks", 1))
    slower = 1 + noise if definition.better == "lower" else 1 - noise
    if ranks == 1:
        slower = 1.0
    made.rank_min, made.rank_median, made.rank_max = value / slower**2, value / slower, value
    made.slowest_rank, made.entry_skew = dice.randrange(ranks), 1.5 * ranks
    return made


def sample_rows() -> list[Row]:
    """About 1100 rows of eight suites in two runs, with every status among them."""
    rows = [
        *_collectives("loopback", "", RUN_ID),
        *_collectives("lab", LAB, LAB_RUN_ID),
        *_alltoall(),
        *_allgather_latency(),
        *_attention(),
        *_expert_gemm(),
        *_matmul_peak(),
        *_memory(),
        *_third_party(),
    ]
    for number, made in enumerate(rows):
        made.row_id = number
    return rows


def sample_runs() -> list[RunRecord]:
    """The records of the two runs that ``sample_rows`` belongs to."""
    cpu = {"model": "Example Xeon 6 @ 2.60GHz", "sockets": 1, "physical_cores": 2, "logical_cpus": 4}
    cpu |= {"l3_bytes": 33_554_432, "isa_extensions": ["avx2", "avx512f", "avx512_bf16", "amx_tile"]}
    identity = {
        "cpu": cpu,
        "memory_gib": 24,
        "gpus": [],
        "nics": [{"name": "eth0", "driver": "virtio_net", "speed_mbit_per_s": 10_000}],
        "os": "Debian GNU/Linux 12 (bookworm)",
        "torch": "2.13.0+cpu",
        "nccl": None,
        "variables": {"OMP_NUM_THREADS": "1"},
    }
    conditions = {"clock_mhz_median": 2593.9, "load_1min": 0.12, "temperature_c": None, "governor": "performance"}
    volatile = {"host": "laptop", "git": {"commit": "26b2877c", "dirty": False}, "conditions": conditions}
    later = {**volatile, "conditions": {**conditions, "load_1min": 1.9}}
    fingerprint = {"identity": identity, "volatile": volatile}
    writer = {"host": "laptop", "pid": 4099, "boot_id": "9f6c"}
    return [
        RunRecord(
            RUN_ID,
            "2026-03-14T09:15:00.000+00:00",
            ["characterize", "--preset", "quick"],
            ["collectives", "alltoall", "attention", "expert_gemm", "matmul_peak", "memory"],
            "quick",
            7,
            "",
            fingerprint,
            writer,
        ),
        RunRecord(
            LAB_RUN_ID,
            "2026-03-14T09:30:00.000+00:00",
            ["run", "collectives", "--lab", LAB, "--seed", "7"],
            ["collectives"],
            "quick",
            7,
            LAB,
            {"identity": identity, "volatile": later},
            writer,
        ),
    ]


def _timed(suite: str, params: dict[str, Any], seconds: float, bound: float, **more: Any) -> Iterator[Row]:
    """The four metrics of a collective that took ``seconds``."""
    size, factor = params["bytes"], busbw_factor(params["op"], params["ranks"])
    yield row(params, "latency", LATENCY, suite=suite, value=seconds * 1e6, **more)
    yield row(params, "algbw", ALGBW, suite=suite, value=size / seconds / 1e9, **more)
    yield row(params, "busbw", BUSBW, suite=suite, value=size / seconds / 1e9 * factor, **more)
    if bound:
        yield row(params, "share_of_bound", SHARE_OF_BOUND, suite=suite, value=bound / seconds, **more)
    else:
        reason = "share_of_bound is not known for this case here"
        run_id = more.get("run_id", RUN_ID)
        yield row(params, "share_of_bound", SHARE_OF_BOUND, suite=suite, status="skipped", reason=reason, run_id=run_id)


def _unmeasured(params: dict[str, Any], status: Status, reason: str, run_id: str) -> Iterator[Row]:
    for name, definition in (
        ("latency", LATENCY),
        ("algbw", ALGBW),
        ("busbw", BUSBW),
        ("share_of_bound", SHARE_OF_BOUND),
    ):
        yield row(params, name, definition, suite="collectives", status=status, reason=reason, run_id=run_id)


def _collectives(scope: str, lab: str, run_id: str) -> Iterator[Row]:
    ops = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "send_recv")
    for op, ranks, size in itertools.product(ops, (8,) if lab else (2, 4), SIZES[::2] if lab else SIZES):
        if op == "send_recv" and ranks > 2:
            continue
        params = {
            "op": op,
            "ranks": ranks,
            "bytes": size,
            "dtype": "float32",
            "algorithm": "library",
            "traffic": "uniform",
            "device": "cpu",
            "nodes": 4 if lab else 1,
            "scope": scope,
            "backend": "gloo",
        }
        if lab:
            params["lab"] = lab
        steps = {"all_reduce": 2 * (ranks - 1), "broadcast": math.log2(ranks), "send_recv": 1}.get(op, ranks - 1)
        alpha, beta = (220e-6, 0.12e9) if lab else (38e-6, 3.4e9)
        seconds = steps * alpha / 2 + size * busbw_factor(op, ranks) / beta * (1 + 0.3 * (size > 1 << 22))
        if op == "all_reduce" and ranks == 4 and size == SIZES[-1]:
            reason = f"rank 3 was killed by signal 9 in iteration 12\n{STACK}"
            yield from _unmeasured(params, "failed", reason, run_id)
        elif op == "all_to_all" and ranks == 4 and size == SIZES[-1]:
            reason = f"rank 1 sent no heartbeat for 10 s in phase measure\n{STACK}"
            yield from _unmeasured(params, "timeout", reason, run_id)
        elif op == "broadcast" and ranks == 2 and size == SIZES[0]:
            reason = "41.2 GB/s is above the 12.8 possible here (copy bandwidth of this memory)"
            yield from _unmeasured(params, "invalid", reason, run_id)
        elif lab and size == SIZES[-2]:
            reason = "needs 4.1GiB of memory for 8 rank(s) here, 3.2GiB are free"
            yield from _unmeasured(params, "skipped", reason, run_id)
        else:
            unsettled = size <= 4096 and ranks == 4
            stop_reason, noise = ("max_time", 0.15) if unsettled else ("converged", 0.02)
            bound = size / beta * 0.8 if lab else 0.0
            yield from _timed(
                "collectives", params, seconds, bound, run_id=run_id, stop_reason=stop_reason, noise=noise
            )


def _alltoall() -> Iterator[Row]:
    slowdown = {"uniform": 1.0, "zipf": 1.7, "hot_rank": 2.9, "idle_rank": 1.1}
    for ranks, traffic, size in itertools.product((2, 4), slowdown, SIZES[::3]):
        params = {
            "op": "all_to_all",
            "ranks": ranks,
            "bytes": size,
            "dtype": "float32",
            "algorithm": "flat",
            "traffic": traffic,
            "device": "cpu",
            "nodes": 1,
            "scope": "loopback",
            "backend": "gloo",
        }
        seconds = 25e-6 * ranks + size / 2.1e9 * slowdown[traffic]
        yield from _timed("alltoall", params, seconds, size / 3.4e9)


def _allgather_latency() -> Iterator[Row]:
    for ranks, size in itertools.product((2, 4), [1 << e for e in range(8, 25)]):
        params = {"op": "all_gather", "ranks": ranks, "dtype": "bfloat16", "bytes": size, "algorithm": "library"}
        params |= {"traffic": "uniform", "bytes_per_rank": size // ranks}
        params |= {"device": "cpu", "nodes": 1, "scope": "loopback", "backend": "gloo"}
        value = 30.0 * ranks + size / 3.4e3
        yield row(params, "latency", LATENCY, suite="allgather_latency", value=value, noise=0.04)


def _attention() -> Iterator[Row]:
    models = {"mixtral-8x7b": "gqa", "deepseek-v2-lite": "mla", "olmoe-1b-7b": "mha"}
    directions, sequences = ("forward", "forward_backward"), (512, 1024, 2048, 4096, 8192)
    for model, direction, sequence in itertools.product(models, directions, sequences):
        params = {"model": model, "tensor_parallel": 8, "sequence": sequence, "batch": 1, "direction": direction}
        params |= {"dtype": "bfloat16", "threads": 2, "heads": models[model], "device": "cpu"}
        value = (0.14 if direction == "forward" else 0.11) * sequence / (sequence + 700) * (1 + len(model) / 40)
        if model == "deepseek-v2-lite" and sequence == 8192 and direction == "forward_backward":
            reason = "needs 21GiB of memory for 1 rank(s) here, 19.4GiB are free"
            yield row(params, "throughput", THROUGHPUT, suite="attention", status="skipped", reason=reason)
        else:
            yield row(params, "throughput", THROUGHPUT, suite="attention", value=value, noise=0.01)


def _expert_gemm() -> Iterator[Row]:
    tokens = [256 * 4**exponent for exponent in range(5)]
    points = itertools.product(("mixtral-8x7b", "olmoe-1b-7b"), tokens, ("uniform", "zipf"), ("grouped", "looped"))
    for model, count, distribution, method in points:
        params = {"model": model, "experts": 8, "tokens": count, "distribution": distribution, "method": method}
        params |= {"direction": "forward", "dtype": "bfloat16", "threads": 2, "device": "cpu"}
        half, peak = (900, 0.15) if method == "grouped" else (4000, 0.165)
        value = peak * count / (count + half) * (0.7 if distribution == "zipf" else 1)
        stop_reason = "max_samples" if count == 256 and distribution == "zipf" else "converged"
        yield row(params, "throughput", THROUGHPUT, suite="expert_gemm", value=value, stop_reason=stop_reason)


def _matmul_peak() -> Iterator[Row]:
    for dtype, peak in (("float32", 0.172), ("bfloat16", 0.61), ("float16", 0.09)):
        for shape, (m, n, k) in {"square": (1, 1, 1), "deep": (0.5, 0.5, 4), "wide": (4, 0.5, 0.5)}.items():
            params = {"dtype": dtype, "size": 2048, "shape": shape, "threads": 2, "device": "cpu"}
            params |= {"m": int(m * 2048), "n": int(n * 2048), "k": int(k * 2048)}
            value = peak * (1 - len(shape) / 60)
            yield row(params, "throughput", THROUGHPUT, suite="matmul_peak", value=value, noise=0.005)


def _memory() -> Iterator[Row]:
    for kernel, threads in itertools.product(("copy", "triad"), (1, 2)):
        params = {"kernel": kernel, "cache_multiple": 4, "threads": threads, "working_set_bytes": 1 << 30}
        value = (13.3 if kernel == "copy" else 11.8) * threads**0.6
        yield row(params | {"device": "cpu"}, "bandwidth", MEMORY_BANDWIDTH, suite="memory", value=value, noise=0.008)


def _third_party() -> Iterator[Row]:
    """A suite that no rule knows, with two parameters that span a heat map."""
    for batch, level in itertools.product((1, 2, 4, 8, 16, 32), ("fast", "normal", "small")):
        params = {"batch": batch, "level": level}
        value = {"fast": 4.0, "normal": 2.2, "small": 0.6}[level] * batch / (batch + 3)
        yield row(params, "rate", MEMORY_BANDWIDTH, suite="example_codec", value=value, noise=0.06)
