"""Measured A/A noise out of the store: the runs of ``bench noise``, by series and machine.

A run of ``bench noise`` is an ordinary run whose command begins with ``noise`` and names a session;
runs of one session measured the same code. Nothing else is stored: the noise is computed from those
runs when it is asked for, so it cannot contradict them, is merged by copying runs, and is known
wherever the runs are. Of several sessions of a series on a machine the newest counts, because an
older one is about an older state of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.environment import identity_digest
from bench.errors import UsageError
from bench.gate_matching import Series, blocks_of, series_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from bench.stats.noise import Noise
    from bench.store.row import Row, RunRecord

MARK = "noise"
SESSION_OPTION = "--session"
LEAST_MEASUREMENTS = 2

Key = tuple[Series, str]
"""A series on one machine, by its digest."""


@dataclass
class NoiseFloors:
    """The A/A measurements of a store, and the noise that follows from them.

    Attributes:
        measurements: rows of the newest session of each series and machine, one a run, oldest first.
        here: digest of the machine that interleaved measurements run on; empty where there are none.
    """

    measurements: Mapping[Key, Sequence[Row]] = field(default_factory=dict)
    here: str = ""
    _known: dict[Key, Noise | None] = field(default_factory=dict)

    def noise(self, series: Series, machine: str) -> Noise | None:
        """The noise of a series on a machine; None where it was not measured twice, or cannot be known."""
        key = (series, machine)
        if key not in self._known:
            self._known[key] = _noise(self.measurements.get(key, ()))
        return self._known[key]

    def floor(self, series: Series, machines: Iterable[str | None], turns: int = 1) -> float | None:
        """The effect that two such measurements without any change exceed once in twenty times.

        Args:
            series: what is compared.
            machines: digests of the machines of both sides; the noisiest counts.
            turns: how many interleaved measurements a side has; the mean of so many scatters less. What is
                not interleaved has one: runs in a row share the machine's mood, and do not average it out.
        """
        known = [self.noise(series, machine) for machine in dict.fromkeys(machines) if machine]
        floors = [noise.floor for noise in known if noise is not None]
        return max(floors) / math.sqrt(turns) if floors else None


def load_noise(store: Path, here: str = "") -> NoiseFloors:
    """The A/A measurements of a store.

    Raises:
        StoreError: a file is damaged.
    """
    from bench.store.reader import Store

    reader = Store(store)
    records = {run.run_id: run.record for run in reader.runs() if session_of(run.record)}
    rows = reader.rows(run_ids=list(records)) if records else []
    return NoiseFloors(newest_session(rows, records), here)


def session_of(record: RunRecord) -> str:
    """The A/A session that a run belongs to; empty for any other run."""
    command = list(record.command)
    if command[:1] != [MARK] or SESSION_OPTION not in command[:-1]:
        return ""
    return command[command.index(SESSION_OPTION) + 1]


def newest_session(rows: Iterable[Row], records: Mapping[str, RunRecord]) -> dict[Key, list[Row]]:
    """By series and machine, the measured rows of the newest session that has at least two runs of it."""
    sessions: dict[Key, dict[str, dict[str, Row]]] = {}
    for row in rows:
        record = records[row.run_id]
        if row.status == "ok" and record.fingerprint.get("identity"):
            key = (series_of(row), identity_digest(record.fingerprint))
            sessions.setdefault(key, {}).setdefault(session_of(record), {})[row.run_id] = row
    found: dict[Key, list[Row]] = {}
    for key, by_session in sessions.items():
        whole = [list(runs.values()) for runs in by_session.values() if len(runs) >= LEAST_MEASUREMENTS]
        if whole:
            found[key] = max(whole, key=lambda runs: records[runs[-1].run_id].started_at)
    return found


def _noise(rows: Sequence[Row]) -> Noise | None:
    if len(rows) < LEAST_MEASUREMENTS:
        return None
    from bench.stats.noise import measure_noise
    from bench.stats.pairs import Samples

    try:
        return measure_noise([Samples.from_blocks(blocks_of([row]), row.unit) for row in rows])
    except UsageError:
        return None  # a median of zero, or numbers that are none: there is no relative noise
