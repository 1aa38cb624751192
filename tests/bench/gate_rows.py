"""Rows, runs and sides for the tests of the gate, made without measuring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.gate_result import Comparison, GateResult
from bench.gate_sources import Source
from bench.policy import Policy
from bench.store.row import Row, RunRecord, new_run_id, utc_now
from bench.store.writer import RunWriter
from bench.suite import Case

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

HERE: dict[str, Any] = {"cpu": {"model": "EPYC"}, "memory_gib": 64}
THERE: dict[str, Any] = {"cpu": {"model": "Xeon"}, "memory_gib": 64}
HOSTILE = "[red]<script>alert(1)</script> |`x`| \x1b[31m\u202e\n../../etc/passwd @team #1 \udc80"


def samples_of(median: float, count: int = 20, *, scatter: float = 0.002, seed: int = 0) -> list[float]:
    """So many independent samples about a median."""
    return (median * np.random.default_rng(seed).lognormal(0.0, scatter, count)).tolist()


def row(samples: Sequence[float] = (), **changes: Any) -> Row:
    """A row of a latency, ok if it has samples."""
    params = changes.pop("params", {"op": "all_gather", "bytes": 1024})
    values: dict[str, Any] = {
        "run_id": "run1",
        "row_id": 0,
        "suite": "collectives",
        "method_version": 1,
        "case": Case(params).id,
        "params": params,
        "metric": "latency",
        "unit": "us",
        "better": "lower",
        "definition": "latency/slowest-rank-v1",
        "value": float(np.median(samples)) if len(samples) else None,
        "n": len(samples),
        "samples": list(samples),
    }
    if not len(samples):
        values |= {"status": "failed", "reason": "rank 1 died"}
    return Row(**{**values, **changes})


def record(run_id: str = "run1", identity: dict[str, Any] | None = None, **changes: Any) -> RunRecord:
    """The record of a run on a machine."""
    git = {"commit": changes.pop("commit", "0" * 40), "dirty": changes.pop("dirty", False)}
    fingerprint = {"identity": HERE if identity is None else identity, "volatile": {"git": git}}
    values: dict[str, Any] = {
        "command": ["run", "collectives"],
        "suites": ["collectives"],
        "preset": "quick",
        "seed": 0,
    }
    return RunRecord(run_id, utc_now(), **{**values, "fingerprint": fingerprint, **changes})


def source(rows: Iterable[Row], identity: dict[str, Any] | None = None, label: str = "somewhere") -> Source:
    """One side, all of whose runs were on one machine."""
    found = tuple(rows)
    return Source(label, found, {r.run_id: record(r.run_id, identity) for r in found})


def store_run(store: Path, rows: Iterable[Row], *, seal: bool = True, **changes: Any) -> str:
    """Store rows as a run of their own; returns its id."""
    run = record(new_run_id(), **changes)
    with RunWriter(store, run) as writer:
        writer.append(list(rows))
        if seal:
            writer.seal()
    return run.run_id


def comparison(**changes: Any) -> Comparison:
    """A comparison that passes."""
    values: dict[str, Any] = {
        "suite": "collectives",
        "method_version": 1,
        "case": "bytes=1024,op=all_gather",
        "params": {"op": "all_gather", "bytes": 1024},
        "metric": "latency",
        "unit": "us",
        "definition": "latency/slowest-rank-v1",
        "better": "lower",
        "verdict": "pass",
        "reason_code": "within_threshold",
        "message": "+0.1 %, at most +0.5 %; threshold 5 %",
        "effect": 0.001,
        "interval": (-0.003, 0.005),
        "change": 0.001,
        "p_value": 0.5,
        "adjusted_p_value": 0.5,
        "minimum_detectable_effect": 0.06,
        "baseline_value": 100.0,
        "candidate_value": 100.1,
        "baseline_samples": 20,
        "candidate_samples": 20,
        "threshold": 0.05,
        "minimum_effect": 0.05,
    }
    return Comparison(**{**values, **changes})


def regressed(**changes: Any) -> Comparison:
    """A comparison that regressed, and was confirmed."""
    values: dict[str, Any] = {
        "verdict": "regressed",
        "reason_code": "confirmed",
        "message": "10 % worse, and 10 % worse in a second measurement; threshold 5 %",
        "effect": 0.1,
        "interval": (0.09, 0.11),
        "change": 0.1,
        "candidate_value": 110.0,
        "confirmed": True,
    }
    return comparison(**{**values, **changes})


def result(*comparisons: Comparison, **changes: Any) -> GateResult:
    """A result of comparisons."""
    values: dict[str, Any] = {"baseline": "main", "candidate": "latest", "policy": Policy()}
    return GateResult(**{**values, "comparisons": list(comparisons), **changes})


def hostile_result() -> GateResult:
    """A result all of whose texts are hostile."""
    texts = {"suite": HOSTILE, "metric": HOSTILE, "case": HOSTILE, "message": HOSTILE, "definition": HOSTILE}
    params = {HOSTILE: HOSTILE, "other": 1}
    found = [
        regressed(**texts, params=params),
        comparison(**texts, params={**params, "other": 2}, verdict="failed", reason_code="candidate_failed"),
        comparison(**texts, params={**params, "other": 3}, waiver=HOSTILE, verdict="inconclusive", unit=HOSTILE),
        comparison(**texts, params={**params, "other": 4}),
    ]
    names = {"baseline": HOSTILE, "candidate": HOSTILE, "notes": [HOSTILE], "errors": [HOSTILE]}
    return result(*found, policy=Policy(source=HOSTILE), **names)
