"""Suite, Case, Metric, Workload: all that the author of a suite needs.

A suite declares axes and presets, and turns a case into a workload. The harness owns the rest:
ranks, warm-up, timing, checks, progress, storage. ``CONTRIBUTING.md`` shows a whole suite.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.definitions import Better, Definition, Unit, Work, format_bytes, parse_bytes, parse_range
from bench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bench.definitions import Ceiling
    from bench.measure.group import RankGroup

Value = int | float | str | bool
Preset = Literal["quick", "standard", "full"]
PRESETS: tuple[Preset, ...] = ("quick", "standard", "full")
Scope = Literal["process", "loopback", "node", "lab", "cluster", "simulated"]
"""Where ranks talk: one process; a host's loopback; a node's GPU fabric; the emulated cluster; a real network; a
simulator, where none do."""


@dataclass(frozen=True)
class Metric:
    """A named result of a suite; unit and direction come from its definition.

    Attributes:
        name: as it appears in rows.
        definition: what its number means.
        params: of this metric's rows alone, beside those of their case. So one case may yield the
            same metric several times, for example a time for each range of a step.
    """

    name: str
    definition: Definition
    # Not hashed, since a mapping cannot be; equal metrics still have equal hashes.
    params: Mapping[str, Value] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Names the metric within its case: ``latency``, or with parameters ``range_time[range=dispatch]``.

        Observations and ceilings go by it.
        """
        return f"{self.name}[{Case(self.params).id}]" if self.params else self.name

    def case_of(self, placed: Case) -> Case:
        """The case of this metric's rows: ``placed`` with the metric's own parameters.

        Raises:
            ValueError: the case has a parameter of that name already.
        """
        if taken := sorted(self.params.keys() & placed.params.keys()):
            raise ValueError(f"metric {self.key!r} sets {', '.join(taken)}, which its case has already; rename it")
        return Case({**placed.params, **self.params}) if self.params else placed

    @property
    def unit(self) -> Unit:
        return self.definition.unit

    @property
    def better(self) -> Better:
        return self.definition.better


@dataclass(frozen=True)
class Axis:
    """One named parameter of a suite's cases.

    Attributes:
        name: as it appears in rows.
        kind: how ``--set`` reads its values.
        help: what it means, with its unit.
        choices: the values it may take; empty for any.
        minimum: the least number that it may take; None for any.
    """

    name: str
    kind: Literal["int", "bytes", "float", "str", "bool"]
    help: str
    choices: tuple[Value, ...] = ()
    minimum: int | None = None

    def parse(self, text: str) -> list[Value]:
        """Values from a ``--set`` text: comma separated, ranges ``a:b`` doubled for int and bytes."""
        values = [value for part in text.split(",") for value in self._parse_part(part.strip())]
        for value in values:
            self.require(value)
        return values

    def require(self, value: Value) -> None:
        """Refuse a value that is not one of ``choices``, or below ``minimum``."""
        if self.choices and value not in self.choices:
            raise unknown_name("value", str(value), [str(choice) for choice in self.choices], self.name)
        # Written so that NaN is refused too.
        if self.minimum is not None and isinstance(value, (int, float)) and not value >= self.minimum:
            raise UsageError(f"{self.name} needs at least {self.minimum}, not {value}")

    def format(self, value: Value) -> str:
        """``value`` as people read it: sizes in binary units."""
        if self.kind == "bytes" and isinstance(value, int):
            return format_bytes(value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    def _parse_part(self, part: str) -> Sequence[Value]:
        if self.kind == "bytes":
            return parse_range(part, parse_bytes)
        if self.kind == "int":
            return parse_range(part)
        if self.kind == "bool":
            if part not in ("true", "false"):
                raise UsageError(f"{self.name} takes true or false, not {part!r}")
            return [part == "true"]
        if self.kind == "float":
            try:
                value = float(part)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise UsageError(f"{self.name} takes finite numbers, not {part!r}")
            return [value]
        return [part]


@dataclass(frozen=True)
class Case:
    """One point of a suite: named parameters, never encoded in a metric's name."""

    params: Mapping[str, Value]

    @property
    def id(self) -> str:
        """Canonical text: the same parameters give the same id everywhere."""
        return ",".join(f"{name}={_canonical(value)}" for name, value in sorted(self.params.items()))

    def __getitem__(self, name: str) -> Any:
        return self.params[name]


def require_plain(suite: str, params: Mapping[str, Value]) -> None:
    """Refuse parameters that cannot be stored: only plain, finite int, float, str and bool can.

    Raises:
        UsageError: names the suite, the parameter and its type (numpy's integers are the usual case).
    """
    for name, value in params.items():
        if type(value) not in (int, float, str, bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise UsageError(
                f"suite {suite!r}: parameter {name!r} is {value!r} ({type(value).__name__});"
                " it must be a plain, finite int, float, str or bool"
            )


def _canonical(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value!r}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Site:
    """What a rank knows of the place that it runs in.

    Attributes:
        rank, world: global rank and number of ranks.
        local_rank, ranks_per_node: within the node; the latter is the largest of all nodes.
        node, nodes: index and number of nodes (hosts, or the lab's namespaces).
        device: ``cpu`` or ``cuda``.
        scope: where ranks talk.
        node_link_bits_per_s: rate of a node's link where it is declared (the lab), else None.
        lab: the lab's shape as on the command line, or empty.
        seed: of the run; traffic and data follow from it.
        cores: that this rank may use.
        last_level_cache_bytes: of the device (on CUDA its L2); None where it cannot be read.
        peak_tflops: by dtype, the most that the device can do; a dtype without an entry has no known limit.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    ranks_per_node: int = 1
    node: int = 0
    nodes: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    scope: Scope = "process"
    node_link_bits_per_s: int | None = None
    lab: str = ""
    seed: int = 0
    cores: int = 1
    last_level_cache_bytes: int | None = None
    peak_tflops: Mapping[str, Ceiling] = field(default_factory=dict)

    @property
    def ranks_on_host(self) -> int:
        """Ranks that share this machine's cores and memory: in a lab, all of them."""
        return self.world if self.scope == "lab" else self.ranks_per_node


class Workload(ABC):
    """A prepared case on one rank. ``run`` is what is timed: nothing else may be in it.

    Attributes:
        work: what one ``run`` does.
        baseline: what ``run`` is compared with, as a method or an attribute; None for no comparison.
            Each iteration times both, and they take turns at going first, so that a machine that
            changes meanwhile slows both. Metrics whose definition has ``against_baseline`` use it;
            all others are about ``run`` alone.
    """

    work: Work = Work()
    baseline: Callable[[], None] | None = None

    @abstractmethod
    def run(self) -> None:
        """Do the work once. On CUDA it may return before the device is done."""

    @abstractmethod
    def check(self) -> int | None:
        """Number of wrong elements on this rank, against an oracle, after at least one ``run``.

        None where the oracle cannot run, for want of memory say: then rows say that nothing was checked, unless
        another rank found something.

        It runs after the timed iterations, so it may be slow, and may call ``run`` again on data
        that it prepares.
        """

    def prepare(self) -> None:
        """Called before every timed call, outside its window (for example to rotate buffers).

        With a baseline that is twice an iteration, before ``run`` and before the baseline.
        """

    def observations(self) -> Mapping[str, Sequence[float]]:
        """Samples, by the metric's key, of the metrics whose definition does not follow from the duration.

        Rank 0's count. A metric without samples, or with one that is not finite, fails.
        """
        return {}

    def close(self) -> None:
        """Release what setup took; called also when the case failed by an exception."""


@dataclass(frozen=True)
class Forecast:
    """What a model says that an iteration takes, made without one.

    Attributes:
        seconds: by part; they add up to the iteration. Empty where there is no prediction.
        profile: what the platform profile is of.
        basis: how the parts are known, a sentence each.
        reason: why there is no prediction, in one line; empty where there is one.

    Raises:
        ValueError: seconds that are negative or not finite, or neither seconds nor a reason.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    profile: str = ""
    basis: Sequence[str] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        for name, value in self.seconds.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"forecast: {name} must be finite and not negative, not {value!r}")
        if bool(self.reason) == (sum(self.seconds.values()) > 0):
            raise ValueError("a forecast has either seconds or a reason why it has none")

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return sum(self.seconds.values())


class ComparableWorkload(Workload):
    """A workload that can take turns with others of its suite, and says whether it does the same as they.

    Every method is collective: all ranks call it. ``bench.comparison`` does; what is compared is a case.

    Attributes:
        settled_after: iterations after which it works as it does from then on; no turn is timed before.
    """

    settled_after: int = 0

    @abstractmethod
    def conditions(self) -> Mapping[str, Value]:
        """What must be equal on all sides before their speeds may be compared, by name; before the first ``run``."""

    @abstractmethod
    def series(self) -> Mapping[str, Sequence[float]]:
        """Numbers that must agree between the sides, by name: one of each iteration so far, or of each inspection."""

    def choices(self) -> Sequence[Sequence[float]]:
        """How often each option was chosen in each iteration so far; empty where nothing is chosen, or counted.

        Any unit will do that is the same in all iterations and on all sides. Later iterations may be left out.
        """
        return ()

    def inspect(self) -> None:
        """Called once, after the timed iterations: more of them, with instruments, for ``observations``."""

    def forecast(self, profile: str) -> Forecast:
        """What a model says that an iteration takes, from a platform profile (its file or folder); before the first."""
        return Forecast(reason="its suite predicts nothing")

    def handed_on(self) -> Mapping[str, Value]:
        """What the other sides take over, in their ``Context.scratch``, in place of measuring it again."""
        return {}


@dataclass(frozen=True)
class Parting:
    """How two sides that are both right may part: rounding makes a close choice fall the other way.

    Attributes:
        of: the choices, in a word for people.
        after: so many iterations, at least, must make the same choices.
        share: of the choices that may differ, at most, in the first iteration in which any do.
        tolerance: of the series from that iteration on.

    Raises:
        ValueError: no iteration, a share outside 0 to 1, or a tolerance below 0.
    """

    of: str
    after: int
    share: float
    tolerance: float

    def __post_init__(self) -> None:
        if self.after < 1 or not 0 <= self.share <= 1 or not self.tolerance >= 0:
            raise ValueError(
                f"parting of {self.of}: at least one iteration, a share from 0 to 1 and a tolerance of 0 or more, not"
                f" {self.after}, {self.share} and {self.tolerance}"
            )


@dataclass(frozen=True)
class Agreement:
    """How far a series of one side may be from another side's.

    Attributes:
        series: name of it.
        tolerance: largest difference, as a share of the other's number; 0 for the same numbers.
        first: only so many iterations, from the first; None for all.
        parting: what holds once the sides' ``choices`` differ; None: the same.

    Raises:
        ValueError: a tolerance below 0, or no iteration.
    """

    series: str
    tolerance: float
    first: int | None = None
    parting: Parting | None = None

    def __post_init__(self) -> None:
        if not self.tolerance >= 0:
            raise ValueError(f"agreement on {self.series}: the tolerance must be 0 or more, not {self.tolerance}")
        if self.first is not None and self.first < 1:
            raise ValueError(f"agreement on {self.series}: it needs at least one iteration, not {self.first}")


def _not_watched() -> None:
    """Nobody waits for a sign of life."""


@dataclass
class Context:
    """What ``Suite.setup`` gets beside the case: the place, and the ranks' control plane."""

    site: Site
    group: RankGroup
    scratch: dict[str, Any] = field(default_factory=dict)
    """Kept from case to case while the same process lives: calibrations, buffers worth reusing."""
    alive: Callable[[], None] = _not_watched
    """Say that a long set-up, iteration or check makes progress. A group none of whose ranks begins
    an iteration, changes its phase or calls this within the stall limit is taken for hung, and ended.
    It only counts, so it may be called often; never call it while nothing moves."""


class Suite(ABC):
    """A family of cases that are measured in one way.

    Class attributes:
        name: as on the command line.
        summary: one line for ``bench list``.
        method_version: bump it when the way of measuring changes; a new series begins.
        metrics: what each case yields.
        axes: the parameters; every preset names a list of values for each.
        presets: values by axis, for each preset.
        distributed: True if a case runs on a group of ranks; then an axis ``ranks`` must be there.
        valid_alone: True if a case of a distributed suite is a measurement on one rank too; where ranks
            talk and nothing else, one of them moves no data.
        characterizes: True for suites that ``bench characterize`` runs.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    method_version: ClassVar[int]
    metrics: ClassVar[tuple[Metric, ...]]
    axes: ClassVar[tuple[Axis, ...]]
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]]
    distributed: ClassVar[bool] = False
    valid_alone: ClassVar[bool] = False
    characterizes: ClassVar[bool] = False

    @abstractmethod
    def setup(self, case: Case, context: Context) -> Workload:
        """Prepare the case on this rank (collective: every rank of the group calls it)."""

    def metrics_for(self, case: Case) -> tuple[Metric, ...]:
        """The metrics that this case yields; all of the suite's by default."""
        return self.metrics

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """Parameters that the place decides, added to the row's: ``threads=0`` becomes the true number."""
        return {}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        """Why the case cannot be measured here, or None. Needs no group, is called before setup."""
        return None

    def memory_bytes(self, case: Case, site: Site) -> int:
        """Memory that one rank needs for the case beyond an idle worker; more than is free: skipped."""
        return 0

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        """All cases of a preset, with some axes' values replaced; the product of the axes by default."""
        values = {axis.name: list(self.presets[preset][axis.name]) for axis in self.axes}
        for name, replacement in overrides.items():
            self.axis(name)
            values[name] = list(replacement)
        for point in itertools.product(*values.values()):
            case = Case(dict(zip(values, point, strict=True)))
            if self.keeps(case):
                yield case

    def keeps(self, case: Case) -> bool:
        """False for points of the product that make no sense (they leave no row)."""
        return True

    def axis(self, name: str) -> Axis:
        """The axis of that name.

        Raises:
            UsageError: the suite has no such axis; the message lists them.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise unknown_name("parameter", name, [axis.name for axis in self.axes], f"suite {self.name!r}")


class ComparableSuite(Suite):
    """A suite whose workloads are ``ComparableWorkload``, and which says how close two of its cases must come.

    Class attributes:
        side_axis: the axis that names what is compared.
        parts: name of a metric that splits the duration of an iteration, and the parameter that names the part;
            None for none.
    """

    side_axis: ClassVar[str]
    parts: ClassVar[tuple[str, str] | None] = None

    @abstractmethod
    def agreements(self, case: Case, reference: Case) -> Sequence[Agreement]:
        """How close the series of ``case`` must come to those of ``reference``."""
