"""Points of a sweep as rows: the same fields as a measured row of the suite ``alltoall`` has."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciera_piper_core.alltoall import REPLAY
from ciera_piper_core.alltoall.router_trace import read_trace
from ciera_piper_core.simulate.machine import BANDWIDTHS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ciera_piper_core.simulate.machine import Machine
    from ciera_piper_core.simulate.sweep import Point

SUITE = "alltoall"
METHOD_VERSION = 1
"""Of the prediction; the suite's own version counts how it measures."""

DTYPE = "bfloat16"
"""Bytes alone decide a prediction; rows of the suite name a dtype, so these do."""

METRICS = {
    "latency": ("us", "lower", "latency/slowest-rank-v1"),
    "algbw": ("GB/s", "higher", "algbw/nccl-tests-v1"),
    "busbw": ("GB/s", "higher", "busbw/nccl-tests-v1"),
    "speedup_over_flat": ("ratio", "higher", "speedup/over-flat-v1"),
    "bottleneck": ("ratio", "unknown", "share/simulated-bottleneck-v1"),
}
"""Unit, direction and definition of each metric. The value of ``bottleneck`` is the share of the time that goes to
the resource which the parameter ``resource`` names."""


def known_names(machine: Machine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the machine's rates and counted terms that were measured, and of all others."""
    terms = machine.terms
    rates = [(name, machine.known[name].status == "measured") for name in BANDWIDTHS if name in machine.known]
    measured = tuple(name for name, was in rates if was)
    return (*measured, *terms.measured), (*(name for name, was in rates if not was), *terms.assumed)


def rows(points: Iterable[Point], machine: Machine, seed: int) -> Iterator[dict[str, Any]]:
    """Rows in order of the points, one a metric; a point without prediction is skipped, with its reason."""
    now = datetime.now(UTC)
    run_id = f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}-{secrets.token_hex(4)}"
    started = now.isoformat(timespec="milliseconds")
    number = 0
    for point in points:
        params = _params(point, machine, seed)
        for metric, value in _values(point).items():
            unit, better, definition = METRICS[metric]
            of_row = dict(params)
            if metric == "bottleneck" and point.prediction is not None:
                of_row["resource"] = point.prediction.bottleneck
            yield {
                "run_id": run_id,
                "row_id": number,
                "suite": SUITE,
                "method_version": METHOD_VERSION,
                "case": ",".join(f"{name}={_canonical(each)}" for name, each in sorted(of_row.items())),
                "params": of_row,
                "metric": metric,
                "unit": unit,
                "better": better,
                "definition": definition,
                "value": value,
                "n": 0,
                "samples": [],
                "rank_min": None,
                "rank_median": None,
                "rank_max": None,
                "slowest_rank": None,
                "entry_skew": None,
                "warmup": 0,
                "stop_reason": "",
                "wrong": None,
                "status": "skipped" if value is None else "ok",
                "reason": point.reason,
                "seed": seed,
                "started_at": started,
                "rounds": [],
            }
            number += 1


def _params(point: Point, machine: Machine, seed: int) -> dict[str, int | float | str | bool]:
    """The suite's parameters, those of the place, and what a prediction stands on."""
    params: dict[str, int | float | str | bool] = {
        "op": "all_to_all",
        "algorithm": point.algorithm,
        "ranks": point.ranks,
        "traffic": point.traffic,
        "dtype": DTYPE,
        "bytes": point.size,
        "device": "simulated",
        "nodes": point.nodes,
        "scope": "simulated",
        "backend": "simulated",
        "platform": machine.name,
    }
    if point.traffic.startswith(REPLAY):
        if point.prediction is not None:
            params["trace"] = read_trace(Path(point.traffic.removeprefix(REPLAY))).digest
    elif point.traffic != "uniform":
        params["seed"] = seed
    if (found := point.prediction) is not None:
        params["engine"] = found.engine
        measured, assumed = known_names(machine)
        params["measured"] = "+".join(measured) or "none"
        params["assumed"] = "+".join(assumed) or "none"
        if found.fallback:
            params["fallback"] = found.fallback
    return params


def _values(point: Point) -> dict[str, float | None]:
    """Values by metric; the flat algorithm is not compared with itself."""
    names = [name for name in METRICS if name != "speedup_over_flat" or point.algorithm != "flat"]
    if point.prediction is None:
        return dict.fromkeys(names)
    seconds = point.prediction.seconds
    algbw = point.largest_bytes / seconds / 1e9
    values = {
        "latency": seconds * 1e6,
        "algbw": algbw,
        "busbw": algbw * (point.ranks - 1) / point.ranks,
        "speedup_over_flat": point.speedup,
        "bottleneck": point.bottleneck_share,
    }
    return {name: values[name] for name in names}


def _canonical(value: int | float | str | bool) -> str:
    """As the harness writes a case's id."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value!r}" if isinstance(value, float) else str(value)
