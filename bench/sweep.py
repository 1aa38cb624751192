"""What to measure: from the words of the command line to an ordered list of cases."""

from __future__ import annotations

import fnmatch
import itertools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from bench.errors import UsageError
from bench.registry import load_suite
from bench.suite import PRESETS, Axis, Case, Preset, Suite, Value, require_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LEAST_SECONDS, MOST_SECONDS = 1e-6, 1e7
MOST_ROUNDS = 100
PLACE_PARAMETERS = ("device",)
"""Added to the parameters of every case by the place it runs in, so no axis may have these names."""

GROUP_PARAMETERS = ("nodes", "scope", "backend", "lab")
"""Added to those of cases that run on a group of ranks."""

DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Request:
    """What the user asked to be measured; stored with the run, so that it can be resumed.

    Attributes:
        suites: names or ``module:Class`` references.
        preset: quick, standard or full.
        overrides: ``axis=values`` texts of ``--set``.
        select: ``axis=pattern`` texts of ``--select``; a case must match all.
        ranks: worlds of the multi-rank suites; empty for the preset's own.
        lab: the emulated cluster's shape, or empty.
        device: cpu, cuda, or auto for cuda where there is one.
        seed: of traffic and data.
        max_time_s: most time in timed iterations of a case; None for the preset's.
        rounds: how many groups of processes measure each case; None for the preset's.
        timeout_s: a case in which nothing moves for so long has failed; None for the default.
        ranges: record the ranges that the measured code marks as rows too.
    """

    suites: tuple[str, ...]
    preset: Preset = "quick"
    overrides: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    lab: str = ""
    device: DeviceChoice = "auto"
    seed: int = 0
    max_time_s: float | None = None
    timeout_s: float | None = None
    rounds: int | None = None
    ranges: bool = False

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UsageError(f"unknown preset {self.preset!r}; known: {', '.join(PRESETS)}")
        if self.device not in get_args(DeviceChoice):
            raise UsageError(f"--device takes {', '.join(get_args(DeviceChoice))}, not {self.device!r}")
        if self.lab and self.device == "cuda":
            raise UsageError("--lab emulates a cluster of CPU ranks; leave --device cuda out")
        if any(ranks < 1 for ranks in self.ranks):
            raise UsageError(f"--ranks needs whole numbers from 1 up, not {min(self.ranks)}")
        if self.lab and self.ranks:
            raise UsageError("--lab gives the number of ranks by its shape; leave --ranks out")
        if self.ranks and any(text.partition("=")[0] == "ranks" for text in self.overrides):
            raise UsageError("--ranks and --set ranks= say the same; give one of them")
        if self.rounds is not None and not 1 <= self.rounds <= MOST_ROUNDS:
            raise UsageError(f"--rounds needs a whole number from 1 to {MOST_ROUNDS}, not {self.rounds}")
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError("--seed needs a number of at most 64 bits")
        for name, seconds in (("--max-time", self.max_time_s), ("--timeout", self.timeout_s)):
            if seconds is not None and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
                raise UsageError(f"{name} needs seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}, not {seconds:g}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Request:
        """The request of a stored run.

        Raises:
            UsageError: the run was not started by this verb.
        """
        try:
            values: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
            }
            return cls(**values)
        except TypeError as error:
            raise UsageError(f"this run cannot be resumed: {error}") from None


@dataclass(frozen=True)
class Job:
    """A case to measure, and the number of ranks that it takes."""

    suite_name: str
    suite: Suite = field(compare=False)
    case: Case
    world: int


def make_sweep(request: Request, lab_world: int | None = None) -> list[Job]:
    """All cases that were asked for; worlds go from small to large, so that each group of ranks starts once.

    Raises:
        UsageError: an unknown suite, parameter or value, or nothing left to measure.
    """
    suites = [(name, load_suite(name)) for name in dict.fromkeys(request.suites)]
    for name, suite in suites:
        _refuse_broken(name, suite)
    _refuse_placement_without_ranks(request, [suite for _, suite in suites])
    overrides = _parse_assignments("--set", request.overrides, [suite for _, suite in suites])
    selections = _parse_assignments("--select", request.select, [suite for _, suite in suites])
    jobs: list[Job] = []
    for name, suite in suites:
        try:
            jobs += _jobs_of(name, suite, request, overrides, selections, lab_world)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"suite {name!r} cannot make its cases: {type(error).__name__}: {error}") from error
    if not jobs:
        raise UsageError("no case is left to measure; `bench list SUITE` shows the parameters and their values")
    return sorted(jobs, key=lambda job: job.world)


def rotated(jobs: Sequence[Job], start_at: int) -> list[Job]:
    """The jobs with the order within each world rotated: a slow drift of the machine meets other cases each run."""
    result: list[Job] = []
    for _, group in itertools.groupby(jobs, key=lambda job: job.world):
        of_world = list(group)
        offset = start_at % len(of_world)
        result += of_world[offset:] + of_world[:offset]
    return result


def _refuse_broken(name: str, suite: Suite) -> None:
    """A suite that breaks its contract is refused by name, before anything is measured."""
    axes = [axis.name for axis in suite.axes]
    reserved = (*PLACE_PARAMETERS, *GROUP_PARAMETERS) if suite.distributed else PLACE_PARAMETERS
    taken = [axis for axis in axes if axis in reserved]
    if taken:
        raise UsageError(f"suite {name!r}: the parameter {taken[0]!r} is set by the place it runs in; rename the axis")
    if suite.distributed and "ranks" not in axes:
        raise UsageError(f"suite {name!r} runs on many ranks, so it needs an axis named 'ranks'")


def _refuse_placement_without_ranks(request: Request, suites: Sequence[Suite]) -> None:
    if not any(suite.distributed for suite in suites) and (request.ranks or request.lab):
        option = "--lab" if request.lab else "--ranks"
        raise UsageError(f"{option} is for multi-rank suites; {suites[0].name!r} runs in one process")


def _jobs_of(
    name: str,
    suite: Suite,
    request: Request,
    overrides: Mapping[str, str],
    selections: Mapping[str, str],
    lab_world: int | None,
) -> list[Job]:
    axes = {axis.name: axis for axis in suite.axes}
    values: dict[str, list[Value]] = {key: axes[key].parse(text) for key, text in overrides.items() if key in axes}
    if suite.distributed and (lab_world or request.ranks):
        values["ranks"] = [lab_world] if lab_world else list(request.ranks)
    keep = [_matcher(axes[key], text) for key, text in selections.items() if key in axes]
    jobs: dict[str, Job] = {}
    for case in suite.cases(request.preset, {axis: list(dict.fromkeys(chosen)) for axis, chosen in values.items()}):
        if all(matches(case) for matches in keep):
            world = int(case["ranks"]) if suite.distributed else 1
            if world < 1:
                raise UsageError(f"ranks needs whole numbers from 1 up, not {world}")
            require_plain(name, case.params)
            jobs.setdefault(case.id, Job(name, suite, case, world))
    return list(jobs.values())


def _parse_assignments(option: str, texts: Sequence[str], suites: Sequence[Suite]) -> dict[str, str]:
    """``axis=text`` by axis; an axis that no suite of the run has is an error that lists the known ones."""
    assignments: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"{option} takes PARAMETER=VALUES, not {text!r}")
        if not any(axis.name == name for suite in suites for axis in suite.axes):
            suites[0].axis(name)
        assignments[name] = value
    return assignments


def _matcher(axis: Axis, text: str) -> Callable[[Case], bool]:
    """Whether a case's value is among those of the text; strings may use the wildcards of the shell."""
    if axis.kind == "str":
        patterns = [part.strip() for part in text.split(",")]
        return lambda case: any(fnmatch.fnmatchcase(str(case[axis.name]), pattern) for pattern in patterns)
    wanted = axis.parse(text)
    return lambda case: case[axis.name] in wanted
