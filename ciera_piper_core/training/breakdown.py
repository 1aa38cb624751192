"""Takes training steps apart: the time of each of their parts, forward and backward, and what is left over.

Forward passes mark their regions themselves. Backward passes are marked from outside: autograd numbers
the nodes of its graph in the order in which a thread makes them, so from the numbers at the edges of
forward regions follows the region that each node belongs to; one between regions belongs to the last before
it. While steps are taken apart, every node has a hook that opens this region before the node runs, and closes
the one before it. Nothing in the model is replaced, and it does not matter whether a pass is of a
pipeline's stage, of inputs or weights alone, or computes activations again.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import graph

from ciera_piper_core.ranges import recording, region, watching
from ciera_piper_core.training.regions import INSTRUMENTS, PARTS, RESIDUAL, exclusive_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ciera_piper_core.systems.system import TrainingSystem

NO_NUMBER = 2**64 - 1
"""Of nodes that only put gradients where they belong: they run as soon as they can, within the part before them."""


@dataclass(frozen=True)
class Breakdown:
    """One step on one rank.

    Attributes:
        seconds: by region of ``training.regions.REGIONS``; all together are the step, less what marking it took.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def whole_seconds(self) -> float:
        """Of the step."""
        return sum(self.seconds.values())

    @property
    def residual_share(self) -> float:
        """Of the step's time, what lies in none of its parts; 0 to 1."""
        whole = self.whole_seconds
        return self.seconds[RESIDUAL] / whole if whole else 0.0


def take_apart(step: Callable[[], object], settle: Callable[[], None] | None = None) -> Breakdown:
    """Run ``step``, which may be collective, on this thread.

    Args:
        settle: waits for a device at both edges of each region, so that it is charged with its kernels:
            ``torch.cuda.synchronize``. None on a CPU.
    """
    with recording(settle) as spans, backward_marked() as threads:
        if settle:
            settle()
        began = time.perf_counter_ns()
        step()
        if settle:
            settle()
        ended = time.perf_counter_ns()
    return Breakdown(exclusive_seconds(spans, began, ended, threads))


def marked_step(system: TrainingSystem, batch: torch.Tensor) -> float:
    """A whole training step (collective), all of whose update is in region ``optimizer``; its loss."""
    loss = system.accumulate(batch)
    with region("optimizer"):
        system.update()
    return loss


@contextmanager
def backward_marked(names: Iterable[str] = PARTS) -> Iterator[set[int]]:
    """Mark in backward passes the regions of those names that the forward passes inside mark.

    Of passes that this thread begins, of forward passes on this thread.

    Yields:
        The threads that run them: this one, and in time those that autograd has of its own for devices.
    """
    marks = _Marks(frozenset(names))
    original: Any = graph._engine_run_backward

    def marked(roots: Any, *arguments: Any, **named: Any) -> Any:
        if threading.get_ident() != marks.thread:
            return original(roots, *arguments, **named)
        with marks.hooked(roots):
            return original(roots, *arguments, **named)

    # It is known by two names.
    places: tuple[Any, ...] = (graph, torch.autograd)
    for place in places:
        place._engine_run_backward = marked
    try:
        with watching(marks):
            yield marks.threads
    finally:
        for place in places:
            place._engine_run_backward = original


class _Marks:
    """Which region was open when a node was made, by its number."""

    def __init__(self, names: frozenset[str]) -> None:
        self.thread = threading.get_ident()
        self.threads = {self.thread}
        self._watched = names
        self._open: list[str] = []
        # From each number on, the region of this place in the other list.
        self._numbers: list[int] = [0]
        self._names: list[str | None] = [None]

    def entered(self, name: str) -> None:
        if name in self._watched and threading.get_ident() == self.thread:
            self._open.append(name)
            self._note()

    def left(self, name: str) -> None:
        if name in self._watched and threading.get_ident() == self.thread:
            self._open.pop()
            self._note()

    @contextmanager
    def hooked(self, roots: Any) -> Iterator[None]:
        """Open, for each node from ``roots`` that runs inside, its region."""
        part, handles, latest = _OpenPart(self.threads), [], -1
        with region(INSTRUMENTS):
            for node in _nodes(roots):
                number = node._sequence_nr()
                if number != NO_NUMBER:
                    handles.append(node.register_prehook(part.opener(self._region_of(number))))
                    latest = max(latest, number)
        try:
            # The node that runs first, for what is done before it runs.
            part.change(self._region_of(latest))
            yield
        finally:
            part.change(None)
            with region(INSTRUMENTS):
                for handle in handles:
                    handle.remove()

    def _note(self) -> None:
        if not self._open:
            return
        number, name = torch._C._autograd._get_sequence_nr(), self._open[-1]
        if number == self._numbers[-1]:
            self._names[-1] = name
        else:
            self._numbers.append(number)
            self._names.append(name)

    def _region_of(self, number: int) -> str | None:
        return self._names[bisect_right(self._numbers, number) - 1] if number >= 0 else None


class _OpenPart:
    """The region that a backward pass is in."""

    def __init__(self, threads: set[int]) -> None:
        self._threads = threads
        self._name: str | None = None
        self._region: region | None = None

    def opener(self, name: str | None) -> Callable[[Any], None]:
        """A hook before a node of that region."""

        def hook(_: Any) -> None:
            if name != self._name:
                self.change(name)

        return hook

    def change(self, name: str | None) -> None:
        if self._region is not None:
            self._region.__exit__()
        self._name, self._region = name, None
        if name is not None:
            self._threads.add(threading.get_ident())
            self._region = region(name)
            self._region.__enter__()


def _nodes(roots: Any) -> Iterator[Any]:
    """All nodes that a backward pass from tensors or edges may come by."""
    given = roots if isinstance(roots, (tuple, list)) else (roots,)
    waiting = list({root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in given})
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
