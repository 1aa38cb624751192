"""Where the time of a step went: computing, communication that nothing hides, copies, idling, and a residual."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.trace.activities import activities_of
from bench.trace.collectives import COLLECTIVES
from bench.trace.intervals import difference, intersection, length, merged, shared_out, union
from bench.trace.kineto import read_traces

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.trace.activities import Activities
    from bench.trace.kineto import TraceFile

Scope = Literal["trace", "step", "steps"]


@dataclass(frozen=True)
class Collective:
    """One collective's part in the time.

    Attributes:
        name: one of ``bench.trace.collectives.COLLECTIVES``.
        time_us: its share of the time in which anything communicates; these add up over collectives,
            since what runs at once shares the time.
        exposed_us: its share of the exposed time; these add up too.
    """

    name: str
    time_us: float
    exposed_us: float


@dataclass(frozen=True)
class Breakdown:
    """Where the time of one window went; the parts add up to the whole.

    ``compute + exposed + copies + idle + residual = duration``, and ``communication = exposed + overlap``.

    Attributes:
        scope: the whole trace, one step, or all steps together (then times are those of a mean step).
        step: its number; None unless the scope is a step.
        duration_us: of the window.
        compute_us: something computes.
        communication_us: something communicates, hidden or not.
        overlap_us: both.
        exposed_us: something communicates and nothing computes.
        copies_us: a copy or a fill runs, and neither of the above.
        idle_us: nothing runs.
        residual_us: what the trace does not explain. On a device: busy with events of no known sort.
            On a host: a region is marked, but no op runs in it (Python itself, or code that torch
            does not see).
        collectives: in the order of ``COLLECTIVES``.
    """

    scope: Scope
    step: int | None
    duration_us: float
    compute_us: float
    communication_us: float
    overlap_us: float
    exposed_us: float
    copies_us: float
    idle_us: float
    residual_us: float
    collectives: tuple[Collective, ...]

    def share(self, us: float) -> float:
        """A part of the whole, from 0 to 1."""
        return us / self.duration_us if self.duration_us else 0.0

    @property
    def overlap_share(self) -> float:
        """The part of the communication that computing hides, from 0 to 1."""
        return self.overlap_us / self.communication_us if self.communication_us else 0.0

    def communication_share(self, *names: str) -> float:
        """What part of the communication these collectives are, from 0 to 1."""
        time = sum(collective.time_us for collective in self.collectives if collective.name in names)
        return time / self.communication_us if self.communication_us else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All times in microseconds, and the shares that people ask for."""
        parts = ("compute", "exposed", "copies", "idle", "residual")
        all_gather, reduce_scatter = (self.communication_share(name) for name in ("all_gather", "reduce_scatter"))
        told = (all_gather, reduce_scatter)
        return {
            **asdict(self),
            "shares": {part: self.share(getattr(self, f"{part}_us")) for part in parts},
            "overlap_share_of_communication": self.overlap_share,
            "communication_shares": {
                "all_gather": all_gather,
                "reduce_scatter": reduce_scatter,
                "other": 1 - sum(told) if self.communication_us else 0.0,
            },
        }


@dataclass(frozen=True)
class RankBreakdown:
    """Where one rank's time went.

    Attributes:
        label: ``rank 3``, with the file where two files claim the same rank.
        rank: None if neither file nor name says.
        source: the file.
        kind: ``gpu`` where a device's timeline was broken down, else ``cpu``.
        whole: from the first activity to the last.
        steps: each marked step, by number.
        mean_step: over the marked steps; None if there are none.
        calls: of each collective in the whole trace; busy_us: the sum of its durations.
        unreadable: events without a usable time, which were left out.
    """

    label: str
    rank: int | None
    source: str
    kind: Literal["gpu", "cpu"]
    whole: Breakdown
    steps: tuple[Breakdown, ...]
    mean_step: Breakdown | None
    calls: dict[str, int]
    busy_us: dict[str, float]
    unreadable: int

    @property
    def headline(self) -> Breakdown:
        """A mean step where steps are marked, else the whole trace."""
        return self.mean_step or self.whole

    def to_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        record["whole"] = self.whole.to_dict()
        record["steps"] = [step.to_dict() for step in self.steps]
        record["mean_step"] = self.mean_step.to_dict() if self.mean_step else None
        return record


def break_down_files(paths: Sequence[Path]) -> list[RankBreakdown]:
    """Break down every trace of every file, by rank.

    Raises:
        UsageError: a file that is no trace (``bench.trace.kineto``), or with nothing to break down.
    """
    traces = [trace for path in paths for trace in read_traces(path)]
    ranks = [trace.rank for trace in traces]
    order = sorted(range(len(traces)), key=lambda i: (ranks[i] is None, ranks[i] or 0, i))
    return [_break_down(traces[i], ranks.count(ranks[i]) > 1) for i in order]


def _break_down(trace: TraceFile, ambiguous: bool) -> RankBreakdown:
    activities = activities_of(trace)
    name = Path(trace.source).name
    label = name if trace.rank is None else f"rank {trace.rank} ({name})" if ambiguous else f"rank {trace.rank}"
    steps = [break_down(activities, step.start, step.end, "step", step.number) for step in activities.steps]
    return RankBreakdown(
        label,
        trace.rank,
        trace.source,
        activities.kind,
        break_down(activities, *activities.span),
        tuple(steps),
        mean(steps, "steps") if steps else None,
        {name: activities.calls[name] for name in COLLECTIVES if name in activities.calls},
        {name: activities.busy_us[name] for name in COLLECTIVES if name in activities.busy_us},
        trace.unreadable,
    )


def break_down(
    activities: Activities, start: float, end: float, scope: Scope = "trace", step: int | None = None
) -> Breakdown:
    """Where the time from ``start`` to ``end`` (microseconds of the trace) went."""
    window = merged([(start, end)])
    compute, copies, unknown = (
        intersection(part, window) for part in (activities.compute, activities.copies, activities.unknown)
    )
    holders = {name: intersection(held, window) for name, held in activities.communication.items()}
    communication = union(*holders.values())
    exposed = difference(communication, compute)
    copying = difference(difference(copies, communication), compute)
    duration, idle = length(window), length(difference(window, union(compute, communication, copies, unknown)))
    parts = (length(compute), length(exposed), length(copying), idle)
    times, exposed_times = shared_out(holders, communication), shared_out(holders, exposed)
    return Breakdown(
        scope,
        step,
        duration,
        compute_us=parts[0],
        communication_us=length(communication),
        overlap_us=length(intersection(communication, compute)),
        exposed_us=parts[1],
        copies_us=parts[2],
        idle_us=idle,
        residual_us=duration - sum(parts),
        collectives=tuple(
            Collective(name, times[name], exposed_times[name]) for name in COLLECTIVES if times.get(name, 0.0) > 0
        ),
    )


def mean(breakdowns: Sequence[Breakdown], scope: Scope) -> Breakdown:
    """Every time's mean; the parts of it add up as those of each do.

    Raises:
        ValueError: of nothing.
    """
    if not breakdowns:
        raise ValueError("the mean of no breakdowns")

    def mean_of(values: Iterable[float]) -> float:
        return sum(values) / len(breakdowns)

    names = [f.name for f in fields(Breakdown) if f.name.endswith("_us")]
    found = [{collective.name: collective for collective in one.collectives} for one in breakdowns]
    collectives = tuple(
        Collective(
            name,
            mean_of(one[name].time_us for one in found if name in one),
            mean_of(one[name].exposed_us for one in found if name in one),
        )
        for name in COLLECTIVES
        if any(name in one for one in found)
    )
    return Breakdown(
        scope,
        None,
        **{name: mean_of(getattr(one, name) for one in breakdowns) for name in names},
        collectives=collectives,
    )
