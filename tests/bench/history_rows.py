"""A store with a history: nightly runs of a made-up machine whose numbers, failures and commits are given."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from bench.store.row import Row, RunRecord
from bench.store.writer import RunWriter
from bench.suite import Case

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.store.row import Value

BEGIN = datetime(2026, 1, 1, 3, tzinfo=UTC)
FAILED = "failed"
ABSENT = None
IDENTITY = {"cpu": {"model": "Example CPU"}, "torch": "2.13.0"}


def commit_of(night: int) -> str:
    """The commit that is measured in a night."""
    return hashlib.sha1(str(night).encode()).hexdigest()


def store_run(
    store: Path,
    night: int,
    values: Mapping[str, float | str | None],
    *,
    metric: str = "latency",
    better: str = "lower",
    unit: str = "us",
    method_version: int = 1,
    identity: Mapping[str, Any] = IDENTITY,
    git: Mapping[str, Any] | None = None,
    params: Mapping[str, Value] | None = None,
    suite: str = "collectives",
    reason: str = "rank 1 died",
    rounds: Sequence[float] = (),
) -> str:
    """One run: a value by ``op``, a failure, or a case that was not measured; the run's id."""
    began = BEGIN + timedelta(days=night)
    run_id = f"{began:%Y%m%dT%H%M%S}000-{night:08x}"
    known = {"commit": commit_of(night), "dirty": False} if git is None else dict(git)
    fingerprint = {"identity": dict(identity), "volatile": {"git": known or None}}
    record = RunRecord(run_id, began.isoformat(), ["run", suite], [suite], "quick", 0, fingerprint=fingerprint)
    rows = []
    for op, value in values.items():
        if value is ABSENT:
            continue
        all_params: dict[str, Value] = {"op": op, "bytes": 1024, **(params or {})}
        row = Row(
            run_id,
            len(rows),
            suite,
            method_version,
            Case(all_params).id,
            all_params,
            metric,
            unit,
            better,
            "latency/x-v1",
            started_at=began.isoformat(),
            status="failed",
            reason=reason,
        )
        if not isinstance(value, str):
            row.value, row.status, row.reason = value, "ok", ""
            row.samples = [value * each for each in rounds for _ in range(2)] or [value]
            row.n, row.rounds = len(row.samples), [2] * len(rounds)
        rows.append(row)
    with RunWriter(store, record) as writer:
        writer.append(rows)
        writer.seal()
    return run_id
