"""Units, sizes and the definition, with an id, of every number that the harness reports.

Sizes are bytes and are shown in binary units (KiB, MiB, GiB); rates are decimal (1 GB/s is
1e9 bytes a second, 1 TFLOP/s is 1e12 operations a second). Each row of a result names the
definition that made it, so that two numbers are compared only if they mean the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

Unit = Literal["ns", "us", "s", "GB/s", "TFLOP/s", "1/s", "tokens/s", "ratio", "nats", "B", "count"]
"""The closed set of units; a metric in anything else is a programming error."""

Better = Literal["lower", "higher", "unknown"]
"""The direction of improvement. Unknown only of numbers that other tools report without saying which it is."""

BYTE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
BIT_RATE_UNITS = {"BIT": 1, "KBIT": 10**3, "MBIT": 10**6, "GBIT": 10**9, "TBIT": 10**12}

_NUMBER_WITH_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Bytes from ``4096``, ``1MiB`` (1,048,576) or ``1MB`` (1,000,000).

    A bare ``1M`` is refused, because half the field reads it one way and half the other.

    Raises:
        UsageError: not a size, ambiguous, negative, or no whole number of bytes.
    """
    match = _NUMBER_WITH_UNIT.fullmatch(text) if len(text) < 40 else None
    if not match:
        raise UsageError(f"{text!r} is not a size; write bytes (4096), 1MiB or 1MB")
    number, unit = match.groups()
    factor = BYTE_UNITS.get(unit.upper() or "B")
    if factor is None:
        if unit.upper() in ("K", "M", "G", "T"):
            big = BYTE_UNITS[unit.upper() + "IB"]
            raise UsageError(
                f"{text!r} is ambiguous: write {number}{unit.upper()}iB (x {big:,} bytes)"
                f" or {number}{unit.upper()}B (x {BYTE_UNITS[unit.upper() + 'B']:,} bytes)"
            )
        raise UsageError(f"unknown size unit {unit!r} in {text!r}; use B, KiB, MiB, GiB, KB, MB, GB")
    whole, _, fraction = number.partition(".")
    scaled = int(whole + fraction) * factor
    if scaled % 10 ** len(fraction):
        raise UsageError(f"{text!r} is not a whole number of bytes")
    return scaled // int(10 ** len(fraction))


def format_bytes(count: int) -> str:
    """``count`` bytes in the largest binary unit that is not above it; a decimal point marks a rounded figure."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = BYTE_UNITS[unit.upper()]
        if count >= factor:
            return f"{count // factor}{unit}" if count % factor == 0 else f"{count / factor:.2f}{unit}"
    return f"{count}B"


def parse_bit_rate(text: str) -> int:
    """Bits a second from ``1gbit`` or ``500mbit`` (decimal, as in ``tc``)."""
    match = _NUMBER_WITH_UNIT.fullmatch(text) if len(text) < 40 else None
    factor = BIT_RATE_UNITS.get(match.group(2).upper()) if match else None
    if not match or factor is None or float(match.group(1)) <= 0:
        raise UsageError(f"{text!r} is not a link rate; write for example 1gbit or 500mbit")
    return round(float(match.group(1)) * factor)


def parse_range(text: str, parse: Callable[[str], int] = int) -> list[int]:
    """``a:b`` as a doubling sequence from a up to and including b; a single value as itself.

    The last value is always ``b``, also where the doubling does not meet it.
    """
    first, colon, last = text.partition(":")
    try:
        if not colon:
            return [parse(first)]
        low, high = parse(first), parse(last)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a number or a range such as 2:16") from error
    if low <= 0 or high < low:
        raise UsageError(f"{text!r} is not a range: it needs 0 < first <= last")
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return [*values, high]


BUSBW_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
"""nccl-tests' factor from algbw to busbw, by operation, for n ranks (definition ``busbw/nccl-tests-v1``)."""


def busbw_factor(op: str, ranks: int) -> float:
    """The factor from algbw to busbw of ``op`` on ``ranks`` ranks.

    Raises:
        UsageError: an operation without a definition.
    """
    if op not in BUSBW_FACTORS:
        raise UsageError(f"no busbw factor is defined for {op!r}; known: {', '.join(BUSBW_FACTORS)}")
    return BUSBW_FACTORS[op](ranks)


@dataclass(frozen=True)
class Ceiling:
    """What the hardware can do at best: a metric's value beyond it is no measurement.

    Attributes:
        value: in the metric's own unit.
        source: where the figure comes from, for the reason of an invalid row.
    """

    value: float
    source: str


@dataclass(frozen=True)
class Work:
    """What one iteration of a workload does: all that a definition needs beside the time.

    Attributes:
        bytes: S of the bandwidth definitions, or the bytes read and written by a memory kernel.
        flops: floating-point operations (a multiply-add counts two).
        executed_flops: the same with what is computed again; None where nothing is.
        peak_flops_per_second: the most that all ranks' devices together can do, if known.
        items: of what the iteration works through: tokens, for example.
        busbw_factor: from algbw to busbw.
        bound_seconds: the least time that this placement could need, if known.
        predicted_seconds, predicted_baseline_seconds: what a model says that an iteration and its baseline take, where
            there is a model.
        ceilings: by the metric's key, what the hardware can do at best.

    Raises:
        ValueError: a number that is negative or not finite.
    """

    bytes: int = 0
    flops: float = 0.0
    executed_flops: float | None = None
    peak_flops_per_second: float | None = None
    items: int = 0
    busbw_factor: float = 1.0
    bound_seconds: float | None = None
    predicted_seconds: float | None = None
    predicted_baseline_seconds: float | None = None
    ceilings: dict[str, Ceiling] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "bytes",
            "flops",
            "executed_flops",
            "peak_flops_per_second",
            "items",
            "busbw_factor",
            "bound_seconds",
            "predicted_seconds",
            "predicted_baseline_seconds",
        ):
            value = getattr(self, name)
            # Written so that NaN is refused too.
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"the {name} of an iteration's work must be finite and not negative, not {value!r}")


@dataclass(frozen=True)
class Definition:
    """How a metric's value follows from the duration of an iteration.

    A metric with neither ``value`` nor ``against_baseline`` is observed by the workload itself
    (``Workload.observations``).

    Attributes:
        id: name and version; goes into every row.
        unit: of the value.
        better: the direction of improvement.
        text: the definition in a sentence, for reports.
        value: from seconds and work to the value.
        against_baseline: from seconds, the baseline's seconds (``Workload.baseline``) and work to the value.

    Raises:
        ValueError: it has both.
    """

    id: str
    unit: Unit
    better: Better
    text: str
    value: Callable[[float, Work], float] | None = None
    against_baseline: Callable[[float, float, Work], float] | None = None

    def __post_init__(self) -> None:
        if self.value and self.against_baseline:
            raise ValueError(f"definition {self.id!r} has both value and against_baseline; a metric follows from one")


DEFINITIONS: dict[str, Definition] = {}


def define(definition: Definition) -> Definition:
    """Register a definition; suites of other packages add theirs with this too."""
    known = DEFINITIONS.setdefault(definition.id, definition)
    if known != definition:
        raise ValueError(f"definition {definition.id!r} is already taken; give yours a new version")
    return definition


LATENCY = define(
    Definition(
        "latency/slowest-rank-v1",
        "us",
        "lower",
        "Duration of one iteration on the slowest rank; the value is the median over iterations.",
        lambda seconds, work: seconds * 1e6,
    )
)
ALGBW = define(
    Definition(
        "algbw/nccl-tests-v1",
        "GB/s",
        "higher",
        "S over the slowest rank's duration; S is nccl-tests': the total over ranks for all_gather and reduce_scatter, "
        "a rank's total for all_to_all (the largest rank's when uneven), the buffer otherwise. The time is not: "
        "nccl-tests takes the mean of iterations back to back, here each begins after a barrier and the median counts.",
        lambda seconds, work: work.bytes / seconds / 1e9,
    )
)
BUSBW = define(
    Definition(
        "busbw/nccl-tests-v1",
        "GB/s",
        "higher",
        "algbw times nccl-tests' factor: 2(n-1)/n all_reduce; (n-1)/n all_gather, reduce_scatter, all_to_all; "
        "1 broadcast, send_recv. Uneven all_to_all keeps its factor, as nccl-tests' alltoallv does. On a flat fabric "
        "it is comparable with the speed of one link.",
        lambda seconds, work: work.bytes / seconds / 1e9 * work.busbw_factor,
    )
)
SHARE_OF_BOUND = define(
    Definition(
        "share_of_bound/placement-v1",
        "ratio",
        "higher",
        "Least time that this placement's links allow, over the measured duration. The bound takes the bytes "
        "that must cross each kind of link, divided by what raw transfers reach there (or the lab's rate).",
        lambda seconds, work: math.nan if work.bound_seconds is None else work.bound_seconds / seconds,
    )
)
THROUGHPUT = define(
    Definition(
        "throughput/matmul-flops-v1",
        "TFLOP/s",
        "higher",
        "Floating-point operations of the matrix products (a multiply-add counts two; causal attention counts "
        "the lower triangle only) over the duration. Softmax, activation and routing are not counted.",
        lambda seconds, work: work.flops / seconds / 1e12,
    )
)
MEMORY_BANDWIDTH = define(
    Definition(
        "bandwidth/stream-v1",
        "GB/s",
        "higher",
        "Bytes read plus bytes written by the kernel, over the duration, as in STREAM (write-allocate traffic "
        "is not counted).",
        lambda seconds, work: work.bytes / seconds / 1e9,
    )
)
RANGE_TIME = define(
    Definition(
        "duration/range-v1",
        "us",
        "lower",
        "Time in which a marked range (parameter range) is open in an iteration, on the slowest rank; the value is the "
        "median over iterations that are run for this alone, after the timed ones. On a GPU each edge waits for the "
        "device, so a range has its own kernels, and none of them overlap.",
    )
)
ITERATION_SECONDS = define(
    Definition(
        "duration/iteration-v1",
        "s",
        "lower",
        "Duration of one iteration on the slowest rank; the value is the median over iterations.",
        lambda seconds, work: seconds,
    )
)
ITEM_RATE = define(
    Definition(
        "rate/items-of-all-ranks-v1",
        "tokens/s",
        "higher",
        "Tokens that all ranks together work through in an iteration, over the slowest rank's duration.",
        lambda seconds, work: work.items / seconds,
    )
)
MFU = define(
    Definition(
        "utilisation/model-flops-v1",
        "ratio",
        "higher",
        "Floating-point operations that the model needs for the iteration (parameter convention says which count; what "
        "is computed again does not), over the duration times the peak of all ranks' devices together (parameter peak "
        "says where that is from, the metric peak_rate how much it is).",
        lambda seconds, work: _share_of_peak(work, seconds, work.flops),
    )
)
HFU = define(
    Definition(
        "utilisation/executed-flops-v1",
        "ratio",
        "higher",
        "As utilisation/model-flops-v1, with the operations that are computed again in the backward pass.",
        lambda seconds, work: _share_of_peak(work, seconds, work.executed_flops),
    )
)
SPEEDUP = define(
    Definition(
        "speedup/by-turns-v1",
        "ratio",
        "higher",
        "Duration of an iteration of the reference (parameter reference) over that of this side, both measured by "
        "turns on the same machine: the estimate of Hodges and Lehmann over turns. Above 1 this side is faster.",
    )
)
SPEEDUP_BOUND = define(
    Definition(
        "speedup/confidence-bound-v1",
        "ratio",
        "higher",
        "End of the 95 % confidence interval of speedup/by-turns-v1; parameter bound says which.",
    )
)
SERIES_DIFFERENCE = define(
    Definition(
        "difference/largest-relative-v1",
        "ratio",
        "lower",
        "Largest difference of a series of numbers (one an iteration) to that of the reference (parameter reference), "
        "over all iterations that both have, as a share of the reference's number.",
    )
)

PREDICTED_SECONDS = define(
    Definition(
        "duration/predicted-iteration-v1",
        "s",
        "lower",
        "What a model says that an iteration takes (parameter part: total, or one of the parts that add up to it), "
        "made before the first one from a platform profile (parameter profile: whose it is) and from what was measured "
        "without such an iteration.",
    )
)
PREDICTION_ERROR = define(
    Definition(
        "difference/predicted-to-measured-v1",
        "ratio",
        "lower",
        "Distance between the predicted and the measured duration of an iteration, as a share of the measured one.",
    )
)


def _share_of_peak(work: Work, seconds: float, flops: float | None) -> float:
    """``flops`` (those of the model if None) over what the devices can do; NaN where that is not known."""
    if not work.peak_flops_per_second:
        return math.nan
    return (work.flops if flops is None else flops) / seconds / work.peak_flops_per_second
