"""An exchange as a fluid: flows share links max-min fairly, finish, and let the next phases begin.

Rates are those of ``max_min``; they hold until a flow finishes or starts. Exactly that is done with
``resolution=0``. With many flows of many sizes, a step is at least ``resolution`` of the least time
that the links allow, and rates hold for all that ends in it or soon after; the answer then errs by
about that share, to either side.

A rank is done with a phase when its last flow is, out or in, and its fixed costs (messages, start,
packing) have passed; then its flows of the next phase may start, each when both its ends are ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.simulate import LINK_KINDS
from ciera_piper_core.simulate.costs import costs_of
from ciera_piper_core.simulate.max_min import EXACT, FairShare
from ciera_piper_core.simulate.prediction import PhaseTime, Prediction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.simulate import Bottleneck
    from ciera_piper_core.simulate.costs import PhaseCosts
    from ciera_piper_core.simulate.fabric import Fabric
    from ciera_piper_core.simulate.flows import Phase, Schedule
    from ciera_piper_core.simulate.machine import Machine

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Ranks = NDArray[np.int32]
    Bools = NDArray[np.bool_]

EXACT_FLOWS = 5_000
"""Up to so many flows, steps are exact by default."""

RESOLUTION = 1 / 64
"""Default for more flows."""

LOOK_AHEAD = 0.5
"""Of a step, how long after it flows may end to be counted as ended with it: errors are least, and even, so."""

CHUNK = 1 << 20
"""Flows whose links are looked up at once, which bounds the memory that takes."""

LARGE_EVENT_SHARE = 1 / 8
"""An event that ends so many of all classes is never passed over."""

KEEP_SHARE = 0.6
"""Classes are dropped from the solver when so few of them are left."""


def predict(machine: Machine, schedule: Schedule, *, resolution: float | None = None) -> Prediction:
    """Seconds of an exchange, with the terms of the machine.

    Args:
        schedule: from ``flows.schedule``.
        resolution: see the module; None for exact steps with few flows, ``RESOLUTION`` with many.

    Raises:
        ValueError: a resolution outside of 0 to 1, or a job that the machine has no place for.
    """
    flows = sum(len(phase.src) for phase in schedule.phases)
    if resolution is None:
        resolution = 0.0 if flows <= EXACT_FLOWS else RESOLUTION
    if not 0 <= resolution < 1:
        raise ValueError(f"resolution must be at least 0 and less than 1, not {resolution!r}")
    fabric = machine.fabric(schedule.job).without_idle_links()
    costs = [costs_of(machine.terms, fabric, phase) for phase in schedule.phases]
    run = _Run(fabric, schedule.phases, costs, resolution)
    run.to_the_end()
    return _summary(machine, schedule, costs, run)


@dataclass(eq=False)
class _Classes:
    """Flows that move alike: of one phase, over the same links, started together.

    Flows are sorted by class, and by bytes within one; a class's rate is that of each of its flows,
    so that what each has been served is one number. Indices ``at`` and ``end`` are into the flows.

    Attributes:
        share: the solver, by class. phase, at, end: of each class; flows before ``at`` have finished.
        served: bytes that each flow of the class has got. late: seconds that it has started before now.
        started: whether it has.
    """

    share: FairShare
    phase: NDArray[np.int8]
    at: Ranks
    end: Ranks
    served: Floats
    late: NDArray[np.float32]
    started: Bools

    @property
    def flows(self) -> Floats:
        """Number of flows of each class that want bytes now."""
        return np.where(self.started, self.end - self.at, 0).astype(np.float64)

    def without_finished(self) -> _Classes:
        """The same, or only what is left where that is much less."""
        kept = np.flatnonzero(self.at < self.end)
        if len(kept) > KEEP_SHARE * len(self.at):
            return self
        return _Classes(
            self.share.take(kept),
            self.phase[kept],
            self.at[kept],
            self.end[kept],
            self.served[kept],
            self.late[kept],
            self.started[kept],
        )


class _Run:
    """The state of a simulation, and its steps."""

    def __init__(self, fabric: Fabric, phases: tuple[Phase, ...], costs: list[PhaseCosts], resolution: float) -> None:
        ranks = fabric.job.ranks
        self.phases, self.tolerance = phases, max(EXACT, resolution / 16)
        self.fixed = np.stack([each.fixed_s for each in costs])
        self._src, self._dst, self._bytes, self._classes = _classify(fabric, phases, costs)
        self._phase_of = np.repeat(np.arange(len(phases), dtype=np.int8), [len(phase.src) for phase in phases])
        self.busiest = self._busiest_links(fabric)
        self._least_step = resolution * sum(seconds for seconds, _ in self.busiest)
        self._left = np.stack(
            [np.bincount(p.src, minlength=ranks) + np.bincount(p.dst, minlength=ranks) for p in phases]
        )
        # When each rank may begin each phase, when its last flow of it ended so far, and when it is done.
        self.ready = np.full((len(phases), ranks), np.inf)
        self._last = np.zeros((len(phases), ranks))
        self.done = np.full((len(phases), ranks), np.inf)
        self.now = 0.0
        self.steps = 0

    def _busiest_links(self, fabric: Fabric) -> list[tuple[float, int]]:
        """For each phase, the least seconds that its links allow, and the kind of the link that says so."""
        found = []
        classes = self._classes
        total = np.add.reduceat(self._bytes, classes.at) if len(classes.at) else np.zeros(0)
        for number in range(len(self.phases)):
            load = classes.share.load(np.where(classes.phase == number, total, 0.0)) if len(total) else np.zeros(1)
            seconds = load / fabric.bytes_s[: len(load)]
            # Rounding must not decide which of equally busy links is named; the first kind is.
            worst = int(np.argmax(seconds >= seconds.max() * (1 - EXACT)))
            found.append((float(seconds.max()), int(fabric.kind[worst])))
        return found

    def to_the_end(self) -> None:
        """Steps until every rank is done with every phase."""
        while True:
            next_start = self._start_what_is_ready()
            flows = self._classes.flows
            if flows.any():
                self._step(flows, next_start)
            elif np.isfinite(next_start):
                self.now = next_start
            else:
                return

    def _start_what_is_ready(self) -> float:
        """Bring ``ready`` and ``done`` up to date, and start flows; the time of the next start to come."""
        classes = self._classes
        settled = False
        while not settled:
            before = np.isfinite(self.done).sum() + np.isfinite(self.ready).sum()
            for number, phase in enumerate(self.phases):
                self.ready[number] = np.max([self.done[each] for each in phase.after], axis=0, initial=0.0)
                over = np.isfinite(self.ready[number]) & (self._left[number] == 0)
                end = np.maximum(self._last[number], self.ready[number]) + self.fixed[number]
                self.done[number] = np.where(over, end, np.inf)
            settled = before == np.isfinite(self.done).sum() + np.isfinite(self.ready).sum()
        waiting = np.flatnonzero(~classes.started)
        if not len(waiting):
            return np.inf
        flow, phase_of = classes.at[waiting], classes.phase[waiting]
        start = np.maximum(self.ready[phase_of, self._src[flow]], self.ready[phase_of, self._dst[flow]])
        due = start <= self.now * (1 + EXACT)
        classes.started[waiting[due]] = True
        classes.late[waiting[due]] = self.now - start[due]
        return float(start[~due].min(initial=np.inf))

    def _step(self, flows: Floats, next_start: float) -> None:
        """Let flows run until one finishes or starts, or for the least step."""
        self.steps += 1
        classes = self._classes
        rates = classes.share.rates(flows, self.tolerance)
        active = np.flatnonzero(flows)
        rate, served = rates[active], classes.served[active]
        served += rate * classes.late[active]
        classes.late[active] = 0.0
        want = self._bytes[classes.at[active]]
        step, ahead = self._next_step((want - served) / rate, next_start - self.now)
        self.now += step
        served += rate * step
        classes.served[active] = served
        while len(active):
            finished = want <= (served + rate * ahead) * (1 + EXACT)
            active, rate, served, want = active[finished], rate[finished], served[finished], want[finished]
            self._finish(classes.at[active], self.now - (served - want) / rate)
            classes.at[active] += 1
            more = classes.at[active] < classes.end[active]
            active, rate, served = active[more], rate[more], served[more]
            want = self._bytes[classes.at[active]]
        self._classes = classes.without_finished()

    def _next_step(self, needed: Floats, until_start: float) -> tuple[float, float]:
        """Seconds to go on, and to look ahead: to the next event, or the least step where the event is a small one.

        What flows that end early in a step leave free is not given to others before the next step. What
        flows take that end soon after it, and are counted as ended with it, makes up for that.
        """
        event = max(min(float(needed.min()), until_start), 0.0)
        if event >= self._least_step:
            return event, 0.0
        ending = np.count_nonzero(needed <= event * (1 + EXACT))
        if ending > LARGE_EVENT_SHARE * len(needed):
            return event, 0.0
        return self._least_step, LOOK_AHEAD * self._least_step

    def _finish(self, flows: Ranks, time: Floats) -> None:
        """Count flows as finished, for both their ranks."""
        ranks = self._left.shape[1]
        phase = self._phase_of[flows] * np.int32(ranks)
        for side in (self._src, self._dst):
            cell = phase + side[flows]
            self._left -= np.bincount(cell, minlength=self._left.size).reshape(self._left.shape)
            np.maximum.at(self._last.reshape(-1), cell, time)


def _classify(
    fabric: Fabric, phases: tuple[Phase, ...], costs: list[PhaseCosts]
) -> tuple[Ranks, Ranks, Floats, _Classes]:
    """Flows of all phases, sorted by class: senders, receivers, bytes; and the classes."""
    src, dst, size, first, number, paths = [], [], [], [], [], []
    flows = 0
    for index, (phase, cost) in enumerate(zip(phases, costs, strict=True)):
        sources, targets, bytes_of, starts = _grouped(fabric, phase, cost)
        src.append(sources)
        dst.append(targets)
        size.append(bytes_of)
        first.append(starts + flows)
        number.append(np.full(len(starts), index, dtype=np.int8))
        paths += [
            fabric.paths(sources[chosen], targets[chosen])
            for chosen in (starts[low : low + CHUNK] for low in range(0, len(starts), CHUNK))
        ]
        flows += len(sources)
    share = FairShare(_joined(paths) if paths else np.empty((0, 1), np.int32), fabric.bytes_s)
    paths.clear()
    at = _joined(first)
    classes = _Classes(
        share,
        _joined(number),
        at,
        np.append(at[1:], np.int32(flows))[: len(at)],
        np.zeros(len(at)),
        np.zeros(len(at), dtype=np.float32),
        np.zeros(len(at), dtype=bool),
    )
    return _joined(src), _joined(dst), _joined(size), classes


def _joined(parts: list[Any]) -> Any:
    """All arrays in one, without a copy of a single one, which may be large."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _grouped(fabric: Fabric, phase: Phase, cost: PhaseCosts) -> tuple[Ranks, Ranks, Floats, Ranks]:
    """Senders, receivers and bytes of a phase's flows, by class and bytes; and where each class begins."""
    # Flows that wait for different ranks start at different times, so they have no class in common.
    if phase.after or fabric.lanes == fabric.job.ranks or fabric.port_carries_network:
        return phase.src, phase.dst, cost.bytes, np.arange(len(phase.src), dtype=np.int32)
    ends = [_narrow(end) for end in fabric.ends(phase.src, phase.dst)]
    # By bytes, then by where they leave, then by where they enter: each sort keeps the order of the one before.
    order = np.argsort(cost.bytes)
    for end in reversed(ends):
        order = order[np.argsort(end[order], kind="stable")]
    enters, leaves = (end[order] for end in ends)
    begins = (enters[1:] != enters[:-1]) | (leaves[1:] != leaves[:-1])
    starts = np.flatnonzero(np.append(len(order) > 0, begins)).astype(np.int32)
    return phase.src[order], phase.dst[order], cost.bytes[order], starts


def _narrow(numbers: Ranks) -> NDArray[np.generic]:
    """The same in 16 bits where they fit, which sort several times faster."""
    return numbers.astype(np.uint16) if numbers.max(initial=0) < 2**16 else numbers


def _summary(machine: Machine, schedule: Schedule, costs: list[PhaseCosts], run: _Run) -> Prediction:
    """The prediction: of phases side by side, the one that ends last counts, and what the other does not hide."""
    parts: dict[Bottleneck, float] = {}
    times: list[PhaseTime] = []
    kinds = [_kind(cost, kind) for cost, (_, kind) in zip(costs, run.busiest, strict=True)]
    ends = run.done.max(axis=1)
    begins = run.ready.min(axis=1)
    level = [_level(schedule.phases, number) for number in range(len(schedule.phases))]
    clock = unhidden = 0.0
    for each in range(max(level) + 1):
        members = [number for number, at in enumerate(level) if at == each]
        last = max(members, key=lambda number: ends[number])
        begin, span = clock, float(ends[last]) - clock
        critical = int(run.done[last].argmax())
        fixed = {
            "message rate": float(costs[last].message_s[critical]),
            "packing": float(costs[last].packing_s[critical]),
        }
        shrink = min(1.0, span / sum(fixed.values())) if any(fixed.values()) else 1.0
        for name, seconds in fixed.items():
            _add(parts, name, seconds * shrink)  # type: ignore[arg-type]  # the keys are bottlenecks
        _add(parts, kinds[last], max(span - sum(fixed.values()), 0.0))
        clock = float(ends[last])
        for number in members:
            if number != last:
                # Ranks that began it before the last was done with what comes before had nothing beside it.
                length = float(ends[number]) - max(begin, float(begins[number]))
                hidden = (1 - machine.terms.overlap_share) * max(length, 0.0)
                _add(parts, kinds[number], hidden)
                unhidden += hidden
    for number, phase in enumerate(schedule.phases):
        times.append(PhaseTime(phase.name, float(begins[number]), float(ends[number]), kinds[number]))
    return Prediction(
        schedule.algorithm,
        schedule.fallback,
        schedule.job.ranks,
        schedule.job.nodes,
        schedule.bytes_per_rank,
        clock + unhidden,
        parts,
        tuple(times),
        "max-min",
        machine.terms.measured,
        machine.terms.assumed,
    )


def _kind(cost: PhaseCosts, kind: int) -> Bottleneck:
    name = LINK_KINDS[kind]
    return "message rate" if cost.short and name != "intra-node" else name


def _level(phases: tuple[Phase, ...], number: int) -> int:
    """How many phases come one after the other before this one."""
    return max((1 + _level(phases, each) for each in phases[number].after), default=0)


def _add(parts: dict[Bottleneck, float], name: Bottleneck, seconds: float) -> None:
    parts[name] = parts.get(name, 0.0) + seconds
