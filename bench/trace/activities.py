"""Sorts a trace's events into computing, communicating by collective, copying, and what cannot be told.

With a device in the trace, its kernels and copies count, and the host's ops do not: they only say
which collective a kernel belongs to, and where steps are. Without one, ops of the host count.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench.trace.collectives import UNTOLD, collective_of, host_collective, is_communication_kernel
from bench.trace.intervals import EMPTY, difference, merged, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bench.trace.intervals import Intervals
    from bench.trace.kineto import Event, TraceFile

KERNEL = ("kernel", "concurrent_kernel")
COPY = ("gpu_memcpy", "gpu_memset", "memcpy", "memset", "concurrent_memcpy", "concurrent_memset")
OTHER_DEVICE = re.compile(r"(gpu|xpu|mtia|hpu|npu|privateuse1)_(?!user_annotation|runtime|driver)|mtia_ccp_events")
"""Categories of devices whose events are busy time, but not known to be of one sort or another."""
LAUNCH = ("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "privateuse1_runtime")
HOST_OP = ("cpu_op", "operator")
HOST_MARK = ("user_annotation",)
DEVICE_MARK = ("gpu_user_annotation",)
STEP = re.compile(r"ProfilerStep\s*#(\d{1,18})")

FAMILIES = {"all_reduce": ("all_reduce", "reduce_scatter"), "all_gather": ("all_gather",)}
"""What was asked for where gloo says what it runs: it has no reduce-scatter, and all-reduces instead."""


@dataclass(frozen=True)
class Step:
    """A step that the trace marks.

    Attributes:
        number: of ``ProfilerStep``.
        start, end: microseconds.
    """

    number: int
    start: float
    end: float


@dataclass(frozen=True)
class Activities:
    """What one rank did.

    Attributes:
        kind: ``gpu`` where a device's timeline counts, ``cpu`` where the host's ops do.
        compute, copies, unknown: of the device; unknown is busy time of no known sort, and on a
            host the time in marked regions, in which perhaps no op runs.
        communication: by collective, as ``bench.trace.collectives.COLLECTIVES`` names them.
        calls: how many events each collective has.
        busy_us: the sum of their durations, however many ran at once.
        steps: by number; empty if none are marked.
    """

    kind: Literal["gpu", "cpu"]
    compute: Intervals
    copies: Intervals
    unknown: Intervals
    communication: dict[str, Intervals]
    calls: dict[str, int]
    busy_us: dict[str, float]
    steps: list[Step] = field(default_factory=list)

    @property
    def span(self) -> tuple[float, float]:
        """From the first activity to the last; on a host, of its marked steps too."""
        sets = [self.compute, self.copies, *self.communication.values()]
        if self.kind == "gpu" or not len(union(*sets)):
            sets.append(self.unknown)
        everything = union(*sets)
        edges = [everything[0, 0], everything[-1, 1]] if len(everything) else []
        if self.kind == "cpu":
            edges += [edge for step in self.steps for edge in (step.start, step.end)]
        return (float(min(edges)), float(max(edges))) if edges else (0.0, 0.0)


def activities_of(trace: TraceFile) -> Activities:
    """Sort the events of a rank's trace."""
    device = [event for event in trace.events if event.category in KERNEL or event.category in COPY]
    other = [event for event in trace.events if OTHER_DEVICE.match(event.category) and event.category not in COPY]
    return _of_device(trace, device, other) if device or other else _of_host(trace)


def _of_device(trace: TraceFile, device: list[Event], other: list[Event]) -> Activities:
    kernels = [event for event in device if event.category in KERNEL]
    copies = [event for event in device if event.category in COPY]
    resolve = _resolver(trace)
    communication: dict[str, list[Event]] = defaultdict(list)
    compute = []
    for kernel in kernels:
        if is_communication_kernel(kernel.name):
            communication[_collective_of_kernel(kernel, resolve)].append(kernel)
        else:
            compute.append(kernel)
    marks = [event for event in trace.events if event.category in DEVICE_MARK]
    steps = _steps(marks) or _steps(_host_marks(trace))
    return _activities("gpu", _pairs(compute), _pairs(copies), _pairs(other), communication, _without_gaps(steps))


def _collective_of_kernel(kernel: Event, resolve: Callable[[Event], str | None]) -> str:
    """As the profiler noted it, else by the kernel's name, else by the annotation around its launch."""
    noted = kernel.args.get("Collective name")
    named = collective_of(noted) if isinstance(noted, str) else "other"
    if named == "other":
        named = collective_of(kernel.name)
    return resolve(kernel) or named if named in UNTOLD else named


def _resolver(trace: TraceFile) -> Callable[[Event], str | None]:
    """A function from a kernel to the collective that the host annotated where it launched it."""
    launches: dict[object, Event] = {}
    marks: dict[object, list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.category in LAUNCH and "correlation" in event.args:
            launches.setdefault(_key(event.args["correlation"]), event)
        elif event.category in HOST_MARK and host_collective(event.name):
            marks[event.tid].append(event)
    starts = {thread: [mark.start for mark in found] for thread, found in marks.items()}

    def resolve(kernel: Event) -> str | None:
        launch = launches.get(_key(kernel.args.get("correlation")))
        if launch is None or launch.tid not in marks:
            return None
        place = bisect_right(starts[launch.tid], launch.start) - 1
        # The annotations of a thread nest at most a few deep.
        for mark in marks[launch.tid][max(0, place - 3) : place + 1][::-1]:
            if launch.start <= mark.end:
                return host_collective(mark.name)
        return None

    return resolve


def _key(value: object) -> object:
    return value if isinstance(value, int | str) else None


def _of_host(trace: TraceFile) -> Activities:
    ops = [event for event in trace.events if event.category in HOST_OP]
    marks = _host_marks(trace)
    carried = [event for event in marks if host_collective(event.name)]
    asked = [event for event in ops if event.name.startswith("c10d::")]
    communication: dict[str, list[Event]] = defaultdict(list)
    for event in asked:
        communication[host_collective(event.name) or "other"].append(event)
    for event, collective in _asked_for(carried, asked):
        communication[collective].append(event)
    steps = _steps(marks)
    regions = [event for event in marks if not host_collective(event.name) and not STEP.match(event.name)]
    compute = _computing_ops(ops, [*asked, *carried])
    activities = _activities("cpu", compute, EMPTY, _pairs(regions), communication, steps)
    # A call is counted once: gloo's own where it is there, the request where the backend leaves no trace.
    for collective, events in communication.items():
        carried_out = sum(event not in asked_set for event in events) if (asked_set := _Identities(asked)) else 0
        activities.calls[collective] = carried_out or len(events)
    return activities


class _Identities:
    """Whether an event is one of some, by identity; equal events may be two."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._ids = {id(event) for event in events}

    def __contains__(self, event: Event) -> bool:
        return id(event) in self._ids

    def __len__(self) -> int:
        return len(self._ids)


def _asked_for(carried: Sequence[Event], asked: Sequence[Event]) -> list[tuple[Event, str]]:
    """Each annotation of a backend with the collective that was asked for: the oldest request it can be."""
    waiting: dict[str, deque[Event]] = defaultdict(deque)
    requests = iter(asked)
    upcoming = next(requests, None)
    found = []
    for event in carried:
        while upcoming is not None and upcoming.start <= event.start:
            waiting[_family(host_collective(upcoming.name) or "other")].append(upcoming)
            upcoming = next(requests, None)
        named = host_collective(event.name) or "other"
        queue = waiting[_family(named)]
        found.append((event, host_collective(queue.popleft().name) or named if queue else named))
    return found


def _family(collective: str) -> str:
    return next((family for family, members in FAMILIES.items() if collective in members), collective)


def _computing_ops(ops: Sequence[Event], communicating: Sequence[Event]) -> Intervals:
    """Time in ops, without those that are part of a communication on the same thread."""
    by_thread: dict[object, list[Event]] = defaultdict(list)
    for event in ops:
        if not event.name.startswith(("c10d::", "record_param_comms")):
            by_thread[event.pid, event.tid].append(event)
    moving: dict[object, list[Event]] = defaultdict(list)
    for event in communicating:
        moving[event.pid, event.tid].append(event)
    parts = [difference(_pairs(found), _pairs(moving.get(thread, ()))) for thread, found in by_thread.items()]
    return union(*parts)


def _host_marks(trace: TraceFile) -> list[Event]:
    return [event for event in trace.events if event.category in HOST_MARK]


def _steps(marks: Iterable[Event]) -> list[Step]:
    """Steps by number; of several marks with one number (a mark a stream), what they cover together."""
    found: dict[int, Step] = {}
    for event in marks:
        if match := STEP.match(event.name):
            number = int(match[1])
            known = found.get(number, Step(number, event.start, event.end))
            found[number] = Step(number, min(known.start, event.start), max(known.end, event.end))
    return [found[number] for number in sorted(found)]


def _without_gaps(steps: list[Step]) -> list[Step]:
    """Steps of a device from one beginning to the next: a mark ends with its last kernel, and idling follows."""
    ends = [later.start for later in steps[1:]] + [steps[-1].end] if steps else []
    return [
        Step(step.number, step.start, end if end > step.start else step.end)
        for step, end in zip(steps, ends, strict=True)
    ]


def _activities(
    kind: Literal["gpu", "cpu"],
    compute: Intervals,
    copies: Intervals,
    unknown: Intervals,
    communication: dict[str, list[Event]],
    steps: list[Step],
) -> Activities:
    return Activities(
        kind,
        compute,
        copies,
        unknown,
        {collective: _pairs(events) for collective, events in communication.items()},
        {collective: len(events) for collective, events in communication.items()},
        {collective: sum(event.end - event.start for event in events) for collective, events in communication.items()},
        steps,
    )


def _pairs(events: Iterable[Event]) -> Intervals:
    return merged([(event.start, event.end) for event in events])
