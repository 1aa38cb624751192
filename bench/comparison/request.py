"""What is to be compared: the sides, the reference, and how many iterations in how many turns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from bench.errors import UsageError, unknown_name
from bench.suite import Case, ComparableSuite
from bench.sweep import LEAST_SECONDS, MOST_SECONDS, DeviceChoice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.suite import Value

TURNS = 8
"""Of each side, where there are as many iterations: so many pairs are the least that signed ranks can use."""
WARMUP = 3
SETTLING = 1
"""Iterations at the start of a turn that are not timed: other processes had the caches since the last one."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        label: names it: in rows it is the value of the suite's ``side_axis``.
        params: of its case, the side axis included.
        world: ranks that it runs on.
        timed: False for a side that only shows which numbers are right.
    """

    label: str
    params: Mapping[str, Value]
    world: int
    timed: bool = True

    @property
    def case(self) -> Case:
        """Its case."""
        return Case(self.params)


@dataclass(frozen=True)
class ComparisonRequest:
    """A comparison as it was asked for; stored with its run.

    Attributes:
        suite: name or ``module:Class`` of a ``ComparableSuite``.
        sides: in the order that they take turns.
        reference: label of the side whose time speedups are ratios to.
        checked_against: label of the side whose series are right; the reference if empty.
        steps: timed iterations of each side.
        turns: how many turns they are cut into, at most.
        warmup: iterations of each side before the first turn, at least 1; the series must agree so far.
        apart: one side after the other in place of turns, where memory does not hold them all.
        lab: the emulated cluster's shape, or empty. device: ``cpu``, ``cuda`` or ``auto``.
        seed: of weights and data.
        profile: platform profile that timed sides are predicted from, a file or folder; empty for no prediction.
        timeout_s: seconds without progress after which a side has failed; None for the default.

    Raises:
        UsageError: says which value is wrong.
    """

    suite: str
    sides: tuple[Side, ...]
    reference: str
    checked_against: str = ""
    steps: int = 24
    turns: int = TURNS
    warmup: int = WARMUP
    apart: bool = False
    lab: str = ""
    device: DeviceChoice = "auto"
    seed: int = 0
    profile: str = ""
    timeout_s: float | None = field(default=None)

    def __post_init__(self) -> None:
        labels = [side.label for side in self.sides]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise UsageError(f"{twice} is there twice; each side needs a name of its own")
        if sum(side.timed for side in self.sides) < 1:
            raise UsageError("name what is to be compared: at least one side")
        for label in (self.reference, self.right):
            if label not in labels:
                raise unknown_name("side", label, labels)
        if not next(side.timed for side in self.sides if side.label == self.reference):
            raise UsageError(f"{self.reference} is not timed, so nothing can be compared with its time")
        for name, least in (("steps", 1), ("turns", 1), ("warmup", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"--{name} needs a whole number from {least} up, not {getattr(self, name)}")
        if self.device not in get_args(DeviceChoice):
            raise UsageError(f"--device takes {', '.join(get_args(DeviceChoice))}, not {self.device!r}")
        if self.lab and self.device == "cuda":
            raise UsageError("--lab emulates a cluster of CPU ranks; leave --device cuda out")
        if self.timeout_s is not None and not LEAST_SECONDS <= self.timeout_s <= MOST_SECONDS:
            raise UsageError(f"--timeout needs seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}")

    @property
    def right(self) -> str:
        """Label of the side that the others' series must agree with."""
        return self.checked_against or self.reference

    @property
    def steps_of_turns(self) -> tuple[int, ...]:
        """Timed iterations of each turn of a side."""
        turns = min(self.turns, self.steps)
        return tuple(self.steps // turns + (place < self.steps % turns) for place in range(turns))

    @property
    def iterations_of_turns(self) -> int:
        """Iterations of all turns of a side, timed or not."""
        return self.steps + SETTLING * len(self.steps_of_turns)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def comparable(name: str) -> ComparableSuite:
    """The suite of that name.

    Raises:
        UsageError: no such suite, or its cases cannot be compared.
    """
    from bench.registry import load_suite

    suite = load_suite(name)
    if not isinstance(suite, ComparableSuite):
        raise UsageError(f"cases of suite {name!r} cannot be compared by turns: it is no ComparableSuite")
    return suite
