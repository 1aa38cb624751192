"""The platform profile: the versioned file of what a machine measured, that cost models load.

``docs/platform-profile.md`` describes the file field by field; ``platform_profile.schema.json``,
beside this module, is its JSON schema. Every key is always present, unknown keys are refused, and
no number is NaN or infinite, so that a reader in any language needs no special cases.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from bench.errors import StoreError, UsageError
from bench.whole_file import write_whole

PROFILE_SCHEMA_VERSION: Final = 1
"""Version of the file; it changes only when an older reader would misread a newer file."""

SCHEMA_PATH = Path(__file__).with_name("platform_profile.schema.json")

ParamValue = bool | int | float | str
Params = dict[str, ParamValue]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(gt=0)]


class _Record(BaseModel):
    """A frozen part of the file: exact types, no unknown keys, finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RowRef(_Record):
    """Which stored row a number came from."""

    run_id: str
    row_id: Count


class MetricInfo(_Record):
    """Unit, direction and definition id of a metric, as its rows carried them."""

    unit: str
    better: Literal["lower", "higher"]
    definition: str


class SuiteMethod(_Record):
    """How a suite measured: its method version and what its metrics mean."""

    method_version: int
    metrics: dict[str, MetricInfo]


class CurvePoint(_Record):
    """One measured size of a curve.

    Attributes:
        bytes: the suite's size parameter: S of nccl-tests for ``collectives`` and ``allgather_latency``
            (the total over ranks); what a rank sends for ``alltoall``.
        latency_us: median over iterations of the slowest rank's duration, microseconds.
        busbw_gb_s, algbw_gb_s: decimal GB/s; None where the suite does not report it.
        share_of_bound: measured speed over what the placement allows at best; None if unknown.
        rank_min_us, rank_max_us: fastest and slowest rank's own median, microseconds.
        n: timed iterations. settled: False if sampling ended before the median was steady.
        fit_us: what the curve's fit predicts here; None without a fit.
        fit_residual: ``fit_us / latency_us - 1``; None without a fit.
        row: the latency row.
    """

    bytes: Size
    latency_us: Positive
    busbw_gb_s: NonNegative | None
    algbw_gb_s: NonNegative | None
    share_of_bound: NonNegative | None
    rank_min_us: NonNegative | None
    rank_max_us: NonNegative | None
    n: Count
    settled: bool
    fit_us: Positive | None
    fit_residual: float | None
    row: RowRef


class Segment(_Record):
    """``latency_us = alpha_us + bytes / (1000 * beta_gb_s)`` for ``min_bytes < bytes <= max_bytes``.

    The first segment includes its ``min_bytes``. ``beta_gb_s`` is None where the size does not show
    in the latency; then ``latency_us = alpha_us``.
    """

    min_bytes: Size
    max_bytes: Size
    alpha_us: NonNegative
    beta_gb_s: Positive | None

    def latency_us_at(self, size: float) -> float:
        """Predicted microseconds for ``size`` bytes; the range is not checked."""
        return self.alpha_us + (size / (1e3 * self.beta_gb_s) if self.beta_gb_s else 0.0)


class AlphaBetaFit(_Record):
    """One or two alpha-beta segments that meet end to end; the prediction never falls with size.

    Attributes:
        segments: by size; the end of one is the begin of the next.
        worst_relative_residual, median_relative_residual: of ``|fit / measured - 1|`` over the points.
        points, unsettled_points: how many points were fitted, and how many of them had not settled.
    """

    model: Literal["alpha-beta"]
    segments: Annotated[tuple[Segment, ...], Field(min_length=1, max_length=2)]
    worst_relative_residual: NonNegative
    median_relative_residual: NonNegative
    points: Count
    unsettled_points: Count

    @property
    def min_bytes(self) -> int:
        return self.segments[0].min_bytes

    @property
    def max_bytes(self) -> int:
        return self.segments[-1].max_bytes

    def latency_us_at(self, size: float) -> float:
        """Predicted microseconds for ``size`` bytes.

        Raises:
            UsageError: outside the range that was fitted.
        """
        _require_within(size, self.min_bytes, self.max_bytes)
        return next(segment for segment in self.segments if size <= segment.max_bytes).latency_us_at(size)


class Curve(_Record):
    """Latency and bandwidth against size, all else equal.

    Attributes:
        suite, op, algorithm, traffic, dtype, backend, device, scope, lab: text, empty where it does not apply.
        ranks, nodes: of the group that talked.
        params: parameters of the suite that have no field above; part of the curve's identity.
        points: by bytes, ascending, at least one.
        base_latency_us: least latency of the points. peak_busbw_gb_s: largest busbw of the points.
        fit: None if there is none; then ``fit_absent_reason`` says why, else it is empty.
    """

    suite: str
    op: str
    algorithm: str
    traffic: str
    dtype: str
    backend: str
    device: str
    scope: str
    lab: str
    ranks: Size
    nodes: Size
    params: Params
    points: Annotated[tuple[CurvePoint, ...], Field(min_length=1)]
    base_latency_us: Positive
    peak_busbw_gb_s: NonNegative | None
    fit: AlphaBetaFit | None
    fit_absent_reason: str

    @model_validator(mode="after")
    def _check(self) -> Curve:
        sizes = [point.bytes for point in self.points]
        if any(left >= right for left, right in itertools.pairwise(sizes)):
            raise ValueError("points must ascend in bytes, each size once")
        if (self.fit is None) != bool(self.fit_absent_reason):
            raise ValueError("a curve has either a fit or a reason why it has none")
        return self

    def latency_us_at(self, size: float) -> float:
        """Microseconds for ``size`` bytes, interpolated between measured points (both axes logarithmic).

        Raises:
            UsageError: ``size`` is outside the measured range; nothing is extrapolated.
        """
        sizes = [point.bytes for point in self.points]
        _require_within(size, sizes[0], sizes[-1])
        right = next(index for index, known in enumerate(sizes) if size <= known)
        high = self.points[right]
        if size == high.bytes:
            return high.latency_us
        low = self.points[right - 1]
        weight = math.log(size / low.bytes) / math.log(high.bytes / low.bytes)
        return low.latency_us * math.pow(high.latency_us / low.latency_us, weight)


class TableRow(_Record):
    """One measured case of a suite whose results are a table.

    Attributes:
        params: all parameters of the case.
        values: by metric name; units and definitions are in ``PlatformProfile.methods``.
        n: timed iterations. settled: False if sampling ended before the median was steady.
        row: the first metric's row.
    """

    params: Params
    values: dict[str, float]
    n: Count
    settled: bool
    row: RowRef


class MatmulPeak(_Record):
    """Largest matmul rate reached, by dtype, device and threads.

    Attributes:
        threads: that computed; None on a GPU.
        best_tflop_s: of all points. best_params: the parameters (shape) that reached it.
        settled: of the best point.
    """

    dtype: str
    device: str
    threads: int | None
    best_tflop_s: Positive
    best_params: Params
    settled: bool
    points: tuple[TableRow, ...]


class MemoryBandwidth(_Record):
    """Largest memory bandwidth reached, by kernel, device and threads; fields as in ``MatmulPeak``."""

    kernel: str
    device: str
    threads: int | None
    best_gb_s: Positive
    best_params: Params
    settled: bool
    points: tuple[TableRow, ...]


class Crossing(_Record):
    """A token count where the faster implementation changes (interpolated in log tokens)."""

    tokens: Positive
    faster_above: Literal["grouped", "looped"]


BreakEvenOutcome = Literal["crossing", "reverse crossing", "several crossings", "grouped always", "looped always"]


class BreakEven(_Record):
    """Where the grouped expert GEMM overtakes the looped one, all else equal.

    Attributes:
        params: what the two have in common: model, experts, dtype, distribution, direction, threads, ...
        outcome: ``crossing`` (grouped is faster above it), ``reverse crossing`` (looped is), ``several
            crossings``, or one that is faster at every token count measured. Equal counts as grouped.
        tokens: of the one crossing with outcome ``crossing``, else None.
        crossings: all, by tokens.
        min_tokens, max_tokens: range where both were measured; "always" means within it.
        settled: False if a compared point was not.
    """

    params: Params
    outcome: BreakEvenOutcome
    tokens: Positive | None
    crossings: tuple[Crossing, ...]
    min_tokens: Size
    max_tokens: Size
    compared_points: Size
    settled: bool


class ExpertGemm(_Record):
    """Expert GEMM table and the break-even points that follow from it."""

    rows: tuple[TableRow, ...]
    break_even: tuple[BreakEven, ...]


class Failure(_Record):
    """A case that gave no number, or a number that cannot be used."""

    suite: str
    case: str
    params: Params
    metrics: tuple[str, ...]
    status: Literal["failed", "timeout", "invalid", "skipped"]
    reason: str
    row: RowRef


class PlatformProfile(_Record):
    """One machine's measured profile.

    Attributes:
        schema_version: of this file. harness_version: of the program that wrote it.
        created_at: UTC, ISO 8601.
        name: for people: host and processor or accelerator model.
        preset: of the runs.
        identity: the identity part of the runs' fingerprint. identity_digest: as in ``bench.environment``.
        run_ids: runs whose rows are here.
        methods: by suite.
        collectives: curves of all suites that measure communication.
        codec: codec throughput, empty if not measured. other: tables of suites not named here.
        unsettled: number of points and table rows that did not settle.
        superseded: rows left out because a better or newer row measured the same.
    """

    schema_version: Literal[1]
    created_at: str
    harness_version: str
    name: str
    preset: str
    identity: dict[str, JsonValue]
    identity_digest: str
    run_ids: tuple[str, ...]
    methods: dict[str, SuiteMethod]
    collectives: tuple[Curve, ...]
    matmul_peak: tuple[MatmulPeak, ...]
    memory: tuple[MemoryBandwidth, ...]
    attention: tuple[TableRow, ...]
    expert_gemm: ExpertGemm
    codec: tuple[TableRow, ...]
    other: dict[str, tuple[TableRow, ...]]
    failures: tuple[Failure, ...]
    unsettled: Count
    superseded: Count

    def save(self, path: Path) -> None:
        """Write the profile as JSON; a reader sees the old file or the whole new one, never a part.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write the platform profile {path}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: Path | str) -> PlatformProfile:
        """Read a profile.

        Raises:
            StoreError: unreadable, not JSON, of another version, or not as the schema says.
        """
        try:
            text = Path(path).read_bytes()
            record = json.loads(text)
        except OSError as error:
            raise StoreError(f"cannot read the platform profile {path}: {error.strerror or error}") from None
        except ValueError as error:
            raise StoreError(f"{path} is not a platform profile: not JSON ({error})") from None
        version = record.get("schema_version") if isinstance(record, dict) else None
        if type(version) is not int:
            raise StoreError(f"{path} is not a platform profile: it has no schema_version")
        if version != PROFILE_SCHEMA_VERSION:
            raise StoreError(
                f"{path} has profile schema {version}, this program reads {PROFILE_SCHEMA_VERSION};"
                " update the older of the two, or run `bench characterize` again"
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StoreError(f"{path} is not a valid platform profile: {where}: {first['msg']}") from None


def schema_text() -> str:
    """The JSON schema of the file, as shipped in ``SCHEMA_PATH``."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **PlatformProfile.model_json_schema()}
    return json.dumps(schema, indent=1) + "\n"


def _require_within(size: float, low: int, high: int) -> None:
    if not low <= size <= high:
        raise UsageError(f"{size:g} bytes is outside the measured range {low}..{high}; measure that size too")
