"""One way to mark a region of a program, for whichever tool is recording it.

A region reaches NVTX on NVIDIA (domain ``ciera_piper``), roctx through torch on AMD, torch's
profiler as a ``record_function`` wherever that runs, :func:`recording` and :func:`watching`. Where
nothing records it costs a fraction of a microsecond, so regions stay in hot code. They vanish under
``torch.compile``, which would otherwise have to break its graph at each.
"""

from __future__ import annotations

import functools
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import torch
from torch.autograd import profiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")

DOMAIN = "ciera_piper"
"""The NVTX domain of all regions: ``nsys`` shows and filters by it."""


@dataclass(frozen=True)
class Span:
    """A region as :func:`recording` saw it, on the host's clock.

    Attributes:
        name: of the region.
        start_ns, end_ns: ``time.perf_counter_ns``. On a GPU these bound the launch, not the kernels.
        thread: ident of the thread; spans nest within one thread.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int


@dataclass(frozen=True)
class _Recording:
    """An open recording: what it collected, when it began, and what it waits for at edges of regions."""

    spans: list[Span]
    since_ns: int
    settle: Callable[[], None] | None


_recordings: list[_Recording] = []


class Watcher(Protocol):
    """Is told of regions as they are entered and left, in the thread that does so."""

    def entered(self, name: str) -> None: ...

    def left(self, name: str) -> None: ...


_watchers: list[Watcher] = []


class region:
    """Mark a region: ``with region("attention.qkv"):``, or ``@region("step")`` on a function.

    Names are dotted, from the whole to the part, and constant: what varies belongs into parameters.
    An instance marks one region at a time; the decorator makes one for each call.
    """

    __slots__ = ("_leave", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._leave: Callable[[], None] | None = None

    def __enter__(self) -> None:
        # Constant in eager mode, and folded away when Dynamo traces: no guard, no graph break.
        if torch.compiler.is_dynamo_compiling():
            return
        if profiler._is_profiler_enabled or _recordings or _watchers or _marker() is not None:
            self._leave = _enter(self.name)

    def __exit__(self, *exception: object) -> None:
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            with region(self.name):
                return function(*args, **kwargs)

        return marked


@contextmanager
def recording(settle: Callable[[], None] | None = None) -> Iterator[list[Span]]:
    """Collect every region, of all threads, that begins and ends inside; in the order of their ends.

    Args:
        settle: called at both edges of each region before the clock is read, for example
            ``torch.cuda.synchronize``: spans then bound the kernels, which no longer overlap those of
            another region. None leaves the host alone to be timed.
    """
    mine = _Recording([], time.perf_counter_ns(), settle)
    _recordings.append(mine)
    try:
        yield mine.spans
    finally:
        # By identity: two recordings that saw the same are equal.
        _recordings[:] = [other for other in _recordings if other is not mine]


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` of every region, of all threads, that begins inside, and of its end."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers[:] = [other for other in _watchers if other is not watcher]


def _enter(name: str) -> Callable[[], None]:
    """Open a region for whoever records now; what it returns closes it.

    What was opened is kept with the region, because a profiler may start or stop inside it.
    """
    marker = _marker()
    profiled = torch.profiler.record_function(name) if profiler._is_profiler_enabled else None
    if marker is not None:
        marker.push(name)
    if profiled is not None:
        profiled.__enter__()  # type: ignore[no-untyped-call]
    told = tuple(_watchers)
    for watcher in told:
        watcher.entered(name)
    if _recordings:
        _settle()
    started_ns = time.perf_counter_ns()

    def leave() -> None:
        if _recordings:
            _settle()
            span = Span(name, started_ns, time.perf_counter_ns(), threading.get_ident())
            for recording in _recordings:
                if recording.since_ns <= started_ns:
                    recording.spans.append(span)
        for watcher in reversed(told):
            watcher.left(name)
        if profiled is not None:
            profiled.__exit__(None, None, None)
        if marker is not None:
            marker.pop()

    return leave


def _settle() -> None:
    """Wait for what the open recordings wait for; each once, however many ask for it."""
    for settle in {recording.settle for recording in _recordings}:
        if settle is not None:
            settle()


class _Marker(Protocol):
    """A vendor's stack of ranges, one a thread."""

    def push(self, name: str) -> None: ...

    def pop(self) -> None: ...


class _Nvtx:
    """NVTX through package ``nvtx``."""

    def __init__(self, domain: Any) -> None:
        self._push_range = domain.push_range
        self._pop_range = domain.pop_range
        # Registered once a name, so that a push passes a pointer only.
        self._attributes = functools.cache(domain.get_event_attributes)

    def push(self, name: str) -> None:
        self._push_range(self._attributes(name))

    def pop(self) -> None:
        self._pop_range()


class _Roctx:
    """roctx, which torch's ROCm build puts behind its NVTX functions."""

    def push(self, name: str) -> None:
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]

    def pop(self) -> None:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


@functools.cache
def _marker() -> _Marker | None:
    """The vendor's ranges, or None if no tool listens to them.

    NVTX looks for a tool once in a process, when it is first called, so one answer is enough.
    """
    if torch.version.hip:
        return _Roctx()
    import nvtx

    domain = nvtx.get_domain(DOMAIN)
    # Without a tool the package hands out a domain whose calls do nothing and return None.
    return None if domain.get_event_attributes("attached") is None else _Nvtx(domain)
