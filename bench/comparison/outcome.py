"""What a comparison found, and its rows: those of each side, its speedup, and how far its series are off."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bench.comparison.contract import largest_difference
from bench.comparison.speedup import Speedup, speedup_of
from bench.comparison.turns import right_record
from bench.definitions import PREDICTED_SECONDS, PREDICTION_ERROR, SERIES_DIFFERENCE, SPEEDUP, SPEEDUP_BOUND
from bench.errors import EXIT_NOT_MEASURED, EXIT_OK
from bench.measure.rounds import block_agreement
from bench.measure.runner import blank_row, placed_case, timed_rows, unmeasured_rows
from bench.measure.sampling import Timing
from bench.suite import Metric

if TYPE_CHECKING:
    from bench.comparison.processes import Record
    from bench.comparison.request import ComparisonRequest
    from bench.store.row import Row, Status
    from bench.suite import ComparableSuite

TOTAL = "total"
"""Of the parts of a predicted iteration, all together."""


@dataclass
class Outcome:
    """What became of a comparison.

    Attributes:
        run_id: it is stored as. request: what was asked for. suite: of all sides.
        records: of the sides, in order.
        interrupted: ended before all was measured.
        unstored: why the store does not have the rows; empty if it has them.
    """

    run_id: str
    request: ComparisonRequest
    suite: ComparableSuite
    records: list[Record]
    interrupted: bool = False
    unstored: str = ""
    _rows: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """Of all timed sides."""
        return [row for record in self.timed for row in self.rows_of(record)]

    @property
    def timed(self) -> list[Record]:
        """The sides whose speed was asked for."""
        return [record for record in self.records if record.side.timed]

    @property
    def reference(self) -> Record:
        """The side that speedups are ratios to."""
        return next(record for record in self.records if record.label == self.request.reference)

    @property
    def right(self) -> Record | None:
        """The side that series are held against; None if none is left."""
        return right_record(self.request, self.records)

    @property
    def exit_code(self) -> int:
        """0 if all sides have speeds and the store has them, else 4."""
        lacking = self.interrupted or self.unstored or any(record.ending for record in self.records)
        return EXIT_NOT_MEASURED if lacking else EXIT_OK

    def seconds(self, record: Record) -> list[list[float]]:
        """Durations of a side's timed iterations, the slowest rank's, by turn; as many turns as every side has."""
        whole = [len(one.turns) for one in self.timed if one.ending is None]
        return [np.max(turn, axis=0).tolist() for turn in record.turns[: min(whole, default=0)]]

    def speedup(self, record: Record) -> Speedup | None:
        """Of a side over the reference; None where one of them has no speeds."""
        reference = self.reference
        if record.ending or reference.ending or record is reference or not self.seconds(record):
            return None
        return speedup_of(self.seconds(reference), self.seconds(record), by_turns=not self.request.apart)

    def prediction_error(self, record: Record) -> float | None:
        """How much longer the predicted iteration is than the measured one, as a share of that; None without both."""
        seconds = [sample for turn in self.seconds(record) for sample in turn]
        if record.ending or record.forecast is None or record.forecast.reason or not seconds:
            return None
        return record.forecast.total / float(np.median(seconds)) - 1

    def rows_of(self, record: Record) -> list[Row]:
        """The rows of a side, stored or to be."""
        if record.label not in self._rows:
            self._rows[record.label] = self._make_rows(record)
        return self._rows[record.label]

    def _make_rows(self, record: Record) -> list[Row]:
        rows = self._own_rows(record)
        if record is not self.reference:
            rows += self._speedup_rows(record)
        return rows + self._difference_rows(record) + self._forecast_rows(record)

    def _own_rows(self, record: Record) -> list[Row]:
        case, site, turns = record.side.case, record.site, self.seconds(record)
        if record.ending or not turns:
            status, reason = self._why_not(record)
            return unmeasured_rows(self.suite, case, site, status, reason)
        seconds = np.concatenate([np.array(turn) for turn in record.turns[: len(turns)]], axis=1)
        entries = np.concatenate([np.array(turn) for turn in record.entry_ns[: len(turns)]], axis=1)
        reason = block_agreement([float(np.median(turn)) for turn in turns])
        timing = Timing(seconds, entries, record.warmup, reason)
        rows = timed_rows(self.suite, case, site, record.work, record.observed or {}, timing)
        for row in rows:
            if row.n == seconds.shape[1]:
                row.rounds = [len(turn) for turn in turns]
            if row.status == "failed" and record.observed is None:
                row.reason = "ended before it was looked into"
        return rows

    def _speedup_rows(self, record: Record) -> list[Row]:
        params = {"reference": self.reference.label}
        metrics = [
            Metric("speedup", SPEEDUP, params),
            *(Metric("speedup_bound", SPEEDUP_BOUND, {**params, "bound": end}) for end in ("low", "high")),
        ]
        rows = [self._row(record, metric) for metric in metrics]
        speedup = self.speedup(record)
        if speedup is None:
            status, reason = self._why_not(record)
            for row in rows:
                row.status, row.reason = status, reason
            return rows
        for row, value in zip(rows, (speedup.value, speedup.low, speedup.high), strict=True):
            if math.isfinite(value) and value > 0:
                row.value, row.status, row.reason = value, "ok", ""
            else:
                row.status, row.reason = "skipped", "too few turns for an interval; more --steps have one"
        rows[0].samples, rows[0].n = list(speedup.ratios), len(speedup.ratios)
        return rows

    def _difference_rows(self, record: Record) -> list[Row]:
        right = self.right
        if right is None or record is right:
            return []
        rows = []
        names = dict.fromkeys(
            agreement.series for agreement in self.suite.agreements(record.side.case, right.side.case)
        )
        for name in names:
            metric = Metric(f"{name}_difference", SERIES_DIFFERENCE, {"reference": right.label})
            row = self._row(record, metric)
            difference = largest_difference(record.series.get(name, ()), right.series.get(name, ()))
            if difference is None or not math.isfinite(difference.relative):
                if record.ending:
                    row.status, row.reason = record.ending.status, record.ending.reason
                else:
                    row.reason = f"no {name} to compare, or one that is not finite"
            else:
                row.value, row.n, row.status, row.reason = difference.relative, difference.compared, "ok", ""
            rows.append(row)
        return rows

    def _forecast_rows(self, record: Record) -> list[Row]:
        forecast = record.forecast
        if forecast is None:
            return []
        whose = {"profile": forecast.profile}
        values: dict[str, float | None] = {TOTAL: None if forecast.reason else forecast.total, **forecast.seconds}
        metrics = [Metric("predicted_time", PREDICTED_SECONDS, {**whose, "part": part}) for part in values]
        rows = [self._row(record, metric) for metric in metrics]
        rows.append(self._row(record, Metric("prediction_error", PREDICTION_ERROR, whose)))
        error = self.prediction_error(record)
        for row, value in zip(rows, (*values.values(), None if error is None else abs(error)), strict=True):
            if value is not None:
                row.value, row.n, row.status, row.reason = value, 1, "ok", ""
            elif forecast.reason:
                row.status, row.reason = "skipped", forecast.reason
            else:
                row.status, row.reason = self._why_not(record)
        return rows

    def _why_not(self, record: Record) -> tuple[Status, str]:
        if record.ending:
            return record.ending.status, record.ending.reason
        if self.reference.ending:
            return "skipped", f"the reference {self.reference.label} has no speed: {self.reference.ending.reason}"
        return "failed", "interrupted before its first turn was complete"

    def _row(self, record: Record, metric: Metric) -> Row:
        placed = placed_case(self.suite, record.side.case, record.site)
        return blank_row(self.suite, placed, metric, record.site.seed)
