"""Pairs the rows of two sides: what may be compared, and why the rest may not.

Two rows are compared only if suite, method version, case, metric, definition and unit are equal and
both were measured on equal machines. Whatever has no partner keeps its place in the result, with a
reason: nothing falls silently out of a gate.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.gate_sources import Source
    from bench.store.row import Row, Value

Unpaired = Literal["new", "missing", "failed"]
BROKEN = ("failed", "timeout", "invalid")


class Series(NamedTuple):
    """What two rows must share to be numbers of the same thing."""

    suite: str
    method_version: int
    case: str
    metric: str
    definition: str
    unit: str


@dataclass(frozen=True)
class Match:
    """One series on one machine, with the rows of both sides.

    Attributes:
        series: what was measured.
        params: of the case.
        better: direction of improvement, as the rows say; empty where none does, or they contradict each other.
        direction_changed: the rows contradict each other: some say lower is better, some higher.
        machine: digest of the candidate's machine; None where it is unknown.
        baseline_machines: those of the baseline's rows.
        baseline, candidate: the measured rows, one a run, in the order of the runs.
        verdict: None if there is a number on both sides, to be judged; else what became of the series.
        reason_code, message: why there is nothing to judge; empty if there is.
    """

    series: Series
    params: Mapping[str, Value]
    better: str
    machine: str | None
    baseline: tuple[Row, ...] = ()
    candidate: tuple[Row, ...] = ()
    baseline_machines: tuple[str | None, ...] = ()
    verdict: Unpaired | None = None
    reason_code: str = ""
    message: str = ""
    direction_changed: bool = False


@dataclass
class Matching:
    """All series of both sides.

    Attributes:
        matches: in the order in which the candidate has them, then what only the baseline has.
        skipped: series that neither side can measure here, which are nobody's fault.
        notes: what the user should know, a line each.
    """

    matches: list[Match] = field(default_factory=list)
    skipped: int = 0
    notes: list[str] = field(default_factory=list)


Machines = dict[str | None, list["Row"]]


def series_of(row: Row) -> Series:
    """The series that a row belongs to."""
    return Series(row.suite, row.method_version, row.case, row.metric, row.definition, row.unit)


def by_series(source: Source) -> dict[Series, Machines]:
    """Rows by series and machine, one a run: of a case that a run measured again, the last counts.

    Runs keep the order that the source has them in: their ids tell the time, and clocks jump.
    """
    latest: dict[tuple[Series, str], Row] = {}
    for row in source.rows:
        latest[series_of(row), row.run_id] = row
    machine_of = {run_id: source.identity(run_id) for run_id in source.run_ids}
    found: dict[Series, Machines] = {}
    for (series, run_id), row in latest.items():
        found.setdefault(series, {}).setdefault(machine_of[run_id], []).append(row)
    return found


def match_rows(baseline: Source, candidate: Source, *, across_machines: bool = False) -> Matching:
    """Pair the rows of two sides.

    Args:
        baseline, candidate: the two sides.
        across_machines: compare with rows of other, or unknown, machines where there are none of the same.
    """
    result = Matching()
    theirs, ours = by_series(baseline), by_series(candidate)
    named: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for series in theirs:
        named[series.suite, series.case, series.metric].append(series)
    ours_named = {(series.suite, series.case, series.metric) for series in ours}
    foreign = 0
    for series, machines in ours.items():
        for machine, rows in machines.items():
            others = named[series.suite, series.case, series.metric]
            match = _match(series, machine, rows, theirs.get(series, {}), others, across_machines)
            if match is None:
                result.skipped += 1
                continue
            result.matches.append(match)
            foreign += bool(match.verdict is None and not _same_machine(machine, theirs[series]))
    for series, machines in theirs.items():
        if (series.suite, series.case, series.metric) in ours_named:
            continue
        rows = [row for found in machines.values() for row in found]
        if all(row.status == "skipped" for row in rows):
            result.skipped += 1
        else:
            message = "the baseline has it, the candidate has no row of it"
            result.matches.append(_unpaired(series, rows, None, "missing", "vanished", message))
    if foreign:
        result.notes.append(
            f"{foreign} metric(s) are compared across machines, as --across-machines asks: machines that differ, not"
            " the change alone, may be what is seen"
        )
    return result


def _match(
    series: Series,
    machine: str | None,
    rows: list[Row],
    theirs: Machines,
    others: Sequence[Series],
    across_machines: bool,
) -> Match | None:
    """One series of the candidate on one machine; None if neither side can measure it."""
    broken = [row for row in rows if row.status in BROKEN]
    if broken:
        message = f"{broken[0].status}: {_first_line(broken[0].reason)}"
        return _unpaired(series, rows, machine, "failed", f"candidate_{broken[0].status}", message)
    measured = [row for row in rows if row.status == "ok"]
    chosen = _baseline_rows(machine, theirs, across_machines)
    known = [row for row in chosen if row.status == "ok"]
    if not measured:
        if not known:
            return None
        message = f"the baseline has it, the candidate skipped it: {_first_line(rows[0].reason)}"
        return _unpaired(series, rows, machine, "missing", "skipped_now", message)
    if not known:
        return _unpaired(series, measured, machine, "new", *_why_new(series, machine, theirs, chosen, others))
    whose = (machine,) if _same_machine(machine, theirs) else tuple(theirs)
    said = {row.better for row in (*known, *measured) if row.better}
    return Match(
        series,
        measured[-1].params,
        "" if len(said) > 1 else next(iter(said), ""),
        machine,
        tuple(known),
        tuple(measured),
        whose,
        direction_changed=len(said) > 1,
    )


def _baseline_rows(machine: str | None, theirs: Machines, across_machines: bool) -> list[Row]:
    if _same_machine(machine, theirs):
        return theirs[machine]
    return [row for rows in theirs.values() for row in rows] if across_machines else []


def _same_machine(machine: str | None, theirs: Machines) -> bool:
    """Two machines that are both unknown are not known to be the same."""
    return machine is not None and machine in theirs


def _why_new(
    series: Series, machine: str | None, theirs: Machines, chosen: Sequence[Row], others: Sequence[Series]
) -> tuple[str, str]:
    """The reason why a measured series has no baseline."""
    if chosen:
        return "baseline_not_measured", f"the baseline has no number: {chosen[0].status}"
    if theirs and (machine is None or set(theirs) == {None}):
        side = "candidate" if machine is None else "baseline"
        return (
            "unknown_machine",
            f"the {side}'s rows do not tell their machine; take them from a store, or compare with --across-machines",
        )
    if theirs:
        return "other_machine", "the baseline was measured on another machine; --across-machines compares all the same"
    for name, word in (("method_version", "method version"), ("definition", "definition"), ("unit", "unit")):
        differing = [other for other in others if getattr(other, name) != getattr(series, name)]
        if differing and len(differing) == len(others):
            was, now = getattr(differing[-1], name), getattr(series, name)
            return f"other_{name}", f"the baseline has {word} {was}, the candidate {now}: a new series begins"
    if others:
        return "other_series", "the baseline has it by another method version, definition or unit: a new series begins"
    return "no_baseline", "the baseline has no row of it"


def _unpaired(
    series: Series, rows: Sequence[Row], machine: str | None, verdict: Unpaired, reason_code: str, message: str
) -> Match:
    side = "baseline" if verdict == "missing" and reason_code == "vanished" else "candidate"
    measured = tuple(row for row in rows if row.status == "ok")
    return Match(
        series,
        rows[-1].params,
        rows[-1].better,
        machine,
        verdict=verdict,
        reason_code=reason_code,
        message=message,
        **{side: measured},  # type: ignore[arg-type]
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def blocks_of(rows: Iterable[Row]) -> list[list[float]]:
    """The samples of rows as independent blocks: a round each, or a run each where a run has no rounds.

    A row without samples, as other tools give, is a block of its value.
    """
    blocks: list[list[float]] = []
    for row in rows:
        samples = list(row.samples)
        if not samples:
            blocks.append([float(row.value or 0.0)])
            continue
        ends = list(row.rounds) if sum(row.rounds) == len(samples) else [len(samples)]
        start = 0
        for count in ends:
            if count:
                blocks.append(samples[start : start + count])
            start += count
    return blocks
