"""Histories from the store: one series for each thing that is measured, judged for changes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_NOT_MEASURED,
    EXIT_OK,
    EXIT_REGRESSION,
    UsageError,
    unknown_name,
)
from bench.gate_output.text import visible
from bench.history_filter import rows_where
from bench.history_points import Ran, instant, place_of, series_of
from bench.history_series import Change, History, Slope
from bench.store.owner import is_alive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.history_series import Kind, Series
    from bench.stats.change_points import Settings
    from bench.stats.findings import ChangePoint, Drift
    from bench.store.reader import Store


def read_history(
    store: Store,
    metric: str,
    where: Sequence[str] = (),
    suite: str | None = None,
    since: str | None = None,
    settings: Settings | None = None,
) -> History:
    """The histories of a metric, judged together.

    Args:
        store: where the runs are.
        metric: its name.
        where: ``key=value`` texts; a value may list several with commas and use the wildcards of the shell.
        suite: only of this suite.
        since: a date (2026-03-14, or with a time) or a run: what came before is judged and not shown.
        settings: what counts as a change.

    Raises:
        UsageError: no such metric, suite, parameter or run, or nothing is left.
        StoreError: a file is damaged.
    """
    from bench.history_headless import headless_files
    from bench.stats.change_points import find_changes

    rows = store.rows(metric=metric, suite=suite)
    torn = list(store.torn)
    if not rows:
        raise _nothing(store, metric, suite)
    kept = rows_where(rows, where)
    ran = _runs_of_suites(store, {row.suite for row in rows})
    begin = None if since is None else _since(store, since)
    series = series_of(kept, ran)
    findings = find_changes(
        [one.values for one in series],
        [[math.nan if point.error is None else point.error for point in one.points] for one in series],
        settings,
    )
    for one, found in zip(series, findings, strict=True):
        one.judged = found.judged
        one.shown_from = 0 if begin is None else sum(instant(point.started_at) < begin for point in one.points)
        changes = [_change(one, change, change is found.changes[-1]) for change in found.changes]
        one.changes = [change for change in changes if change.found.index >= one.shown_from]
        one.slopes = [_slope(one, drift) for drift in found.drifts if drift.last >= one.shown_from]
    shown = [one for one in series if one.shown]
    if not shown:
        raise UsageError(
            f"no run since {visible(since or '')} has {metric!r} of these cases; "
            "leave --since out, or take an earlier one"
        )
    headless = headless_files(store.path)
    notes = [f"{path}: no header can be read, so nothing is known of this run but its name" for _, path in headless]
    suites = {one.suite: ran[one.suite] for one in shown}
    return History(metric, shown, [*torn, *notes], _lost(shown, suites, [run_id for run_id, _ in headless]))


def _runs_of_suites(store: Store, suites: set[str]) -> dict[str, list[Ran]]:
    """By suite, the runs with rows of it, and those that were to measure it and ended before, in order of time."""
    found = store.query("SELECT DISTINCT suite, run_id FROM rows")
    with_rows = set(zip(found["suite"], found["run_id"], strict=True))
    ran: dict[str, list[Ran]] = {suite: [] for suite in suites}
    for run in sorted(store.runs(), key=lambda run: place_of(run.record)):
        for suite in suites:
            has_rows = (suite, run.run_id) in with_rows
            # What is still being written may have its first row yet to come.
            ended = run.state == "sealed" or is_alive(run.record.writer) is not True
            if has_rows or (suite in run.record.suites and ended):
                ran[suite].append(Ran(run.record, has_rows))
    return ran


def _lost(shown: Sequence[Series], ran: dict[str, list[Ran]], headless: Sequence[str]) -> str:
    """The newest run that left no row and is a gap nowhere, if no later run has rows of each suite."""
    points = {point.run_id for one in shown for point in one.points}
    for runs in ran.values():
        newest = max((run.record.run_id for run in runs if run.has_rows), default="")
        without = [run.record.run_id for run in runs if not run.has_rows and run.record.run_id not in points]
        # A headless file tells no suite, so it may be of any; ids sort by the start of their runs.
        if later := [run_id for run_id in (*without, *headless) if run_id > newest]:
            return max(later)
    return ""


def _nothing(store: Store, metric: str, suite: str | None) -> UsageError:
    """Why there is no row of the metric."""
    found = store.query("SELECT DISTINCT suite, metric FROM rows")
    if found.empty:
        return UsageError(f"there is no run in {store.path}; `bench run` makes one, --store names another store")
    suites = sorted(set(found["suite"]))
    if suite is not None and suite not in suites:
        return unknown_name("suite", suite, list(map(visible, suites)))
    mine = found if suite is None else found[found["suite"] == suite]
    return unknown_name("metric", metric, sorted(map(visible, set(mine["metric"]))))


def _since(store: Store, text: str) -> float:
    """The moment that ``--since`` names: a date or time, else the start of a run."""
    # A run's id may read as a date (20260314T...), so only what has a date's dashes is one.
    moment = instant(text) if "-" in text[:8] else -math.inf
    if moment > -math.inf:
        return moment
    try:
        return instant(store.record(store.resolve(text)).started_at)
    except UsageError as error:
        raise UsageError(f"--since takes a date (2026-03-14) or a run: {error}") from None


def _change(one: Series, found: ChangePoint, last: bool) -> Change:
    """A change point with its commits and its meaning."""
    earlier = [point for point in one.points[: found.earliest] if point.value is not None]
    return Change(_kind(one, found), found, earlier[-1].commit, one.points[found.latest].commit, last)


def _slope(one: Series, found: Drift) -> Slope:
    """A drift and its meaning."""
    return Slope(_kind(one, found), found, all(point.value is None for point in one.points[found.last + 1 :]))


def _kind(one: Series, found: ChangePoint | Drift) -> Kind:
    if one.better not in ("lower", "higher") or found.after == found.before:
        return "change"
    return "regression" if (found.after > found.before) == (one.better == "lower") else "improvement"


def exit_code(history: History) -> int:
    """The exit code of ``--fail-on-regression``, by the series that are still measured.

    1 where the present level is a confirmed regression; else 4 where the newest run failed, lacks a case or left
    no row, or nothing could be judged; else 3 where a regression is suspected, or a drift for the worse lasts: no
    commit is to blame for it, and a person has to look; else 0.
    """
    present = [one for one in history.series if not one.superseded]
    standing = [one.standing for one in present if one.standing and one.standing.kind == "regression"]
    if any(change.found.status == "confirmed" for change in standing):
        return EXIT_REGRESSION
    if (
        history.lost
        or not any(one.judged for one in present)
        or any(one.newest.status not in ("ok", "skipped") for one in present)
    ):
        return EXIT_NOT_MEASURED
    return EXIT_INCONCLUSIVE if standing or any(one.worsening for one in present) else EXIT_OK
