"""The suite ``self``: what the harness itself costs, in its timed loop, around a training step, and in its store."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from bench.definitions import Definition, define
from bench.errors import UsageError
from bench.step_overhead import STEP_OVERHEAD, SUITE, StepOverhead
from bench.store.row import Row, RunRecord, new_run_id, utc_now
from bench.suite import Axis, Case, Metric, Suite, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bench.suite import Context, Preset, Site, Value

LOOP_OVERHEAD = define(
    Definition(
        "overhead/loop-v1",
        "ns",
        "lower",
        "Time of the harness's timed loop around an empty function, less that of a bare for loop around the same "
        "function, an iteration. Both run by turns in one process, 10,000 iterations a sample.",
    )
)
SEAL_SECONDS = define(
    Definition(
        "duration/write-and-seal-v1",
        "s",
        "lower",
        "Time to append the rows in fours, each append flushed to disk, and to seal them into Parquet, which is read "
        "back and compared. Each row has 20 samples. Files lie in the system's temporary folder.",
        lambda seconds, work: seconds,
    )
)
QUERY_SECONDS = define(
    Definition(
        "duration/filter-and-group-v1",
        "s",
        "lower",
        "Time to open a store of ten sealed runs and query all its rows: filtered by status and by a parameter, "
        "grouped by metric and another parameter, the median of each group.",
        lambda seconds, work: seconds,
    )
)

LOOP_ITERATIONS = 10_000
ROWS_A_CASE = 4
SAMPLES_A_ROW = 20
STORED_RUNS = 10
ROW_BYTES = 4096
"""Memory of a row with its samples and parameters as Python objects, with room to spare."""
QUERY = (
    "SELECT metric, params->>'$.op' AS op, median(value) AS value FROM rows"
    " WHERE status = 'ok' AND (params->>'$.bytes')::BIGINT > 1048576 GROUP BY ALL"
)
OPS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")


class SelfSuite(Suite):
    """The harness measured by itself."""

    name: ClassVar[str] = "self"
    summary: ClassVar[str] = "what the harness costs: timed loop, beside a training step too, sealing, queries"
    method_version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loop_overhead", LOOP_OVERHEAD),
        Metric("step_overhead", STEP_OVERHEAD),
        Metric("seal_seconds", SEAL_SECONDS),
        Metric("query_seconds", QUERY_SECONDS),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("what", "str", "part of the harness", ("loop", "step", "seal", "query")),
        Axis("rows", "int", "rows sealed or queried; 0 for loop and step", minimum=0),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {"what": ("loop", "step", "seal", "query"), "rows": (0, 100_000, 1_000_000)},
        "standard": {"what": ("loop", "step", "seal", "query"), "rows": (0, 100_000, 1_000_000)},
        "full": {"what": ("loop", "step", "seal", "query"), "rows": (0, 10_000, 100_000, 1_000_000)},
    }

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        """As for any suite; but unless ``rows`` is set, queries and only they take a million of them."""
        for case in super().cases(preset, overrides):
            if "rows" in overrides or (case["rows"] == 1_000_000) == (case["what"] == "query"):
                yield case

    def keeps(self, case: Case) -> bool:
        return bool((case["what"] in ("loop", "step")) == (case["rows"] == 0))

    def metrics_for(self, case: Case) -> tuple[Metric, ...]:
        (metric,) = (metric for metric in self.metrics if metric.name.startswith(case["what"]))
        return (metric,)

    def memory_bytes(self, case: Case, site: Site) -> int:
        if case["what"] == "step":
            suite, step = _training_step()
            return suite.memory_bytes(step, site)
        in_python = case["rows"] if case["what"] == "seal" else case["rows"] // STORED_RUNS
        return 2 * ROW_BYTES * int(in_python)

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["what"] != "step":
            return None
        try:
            suite, step = _training_step()
        except UsageError as error:
            return str(error)
        return suite.skip_reason(step, site)

    def setup(self, case: Case, context: Context) -> Workload:
        if case["what"] == "loop":
            return _Loop(context.site.device)
        if case["what"] == "step":
            return StepOverhead(*_training_step(), context)
        if case["what"] == "seal":
            return _Seal(case["rows"], context.site.seed)
        return _Query(case["rows"], context.site.seed)


def synthetic_rows(n: int, seed: int) -> Iterator[Row]:
    """``n`` rows as a sweep over collectives makes them, the same for the same seed; every hundredth failed."""
    rng = random.Random(seed)
    metrics = (
        ("latency", "us", "lower"),
        ("algbw", "GB/s", "higher"),
        ("busbw", "GB/s", "higher"),
        ("share_of_bound", "ratio", "higher"),
    )
    for row_id in range(n):
        metric, unit, better = metrics[row_id % len(metrics)]
        if row_id % len(metrics) == 0:
            params: dict[str, Value] = {
                "op": rng.choice(OPS),
                "ranks": rng.choice((2, 4, 8)),
                "nodes": 1,
                "scope": "loopback",
                "dtype": rng.choice(("bfloat16", "float32")),
                "bytes": 1 << rng.randrange(10, 31),
                "algorithm": "flat",
                "traffic": "uniform",
            }
            typical = rng.lognormvariate(3, 2)
        samples = [float(f"{typical * rng.lognormvariate(0, 0.05):.7g}") for _ in range(SAMPLES_A_ROW)]
        row = Row(
            run_id="",
            row_id=row_id,
            suite="collectives",
            method_version=1,
            case=Case(params).id,
            params=params,
            metric=metric,
            unit=unit,
            better=better,
            definition=f"{metric}/synthetic-v1",
            value=median(samples),
            n=len(samples),
            samples=samples,
            rank_min=min(samples),
            rank_median=median(samples),
            rank_max=max(samples),
            slowest_rank=0,
            entry_skew=float(f"{rng.random():.7g}"),
            warmup=3,
            stop_reason="converged",
            wrong=0,
            seed=seed,
            started_at="2025-01-01T00:00:00.000+00:00",
        )
        if row_id % 100 == 99:
            row.status, row.reason, row.value, row.n, row.samples = (
                "failed",
                "rank 1 was killed by SIGKILL",
                None,
                0,
                [],
            )
        yield row


def synthetic_record(seed: int) -> RunRecord:
    """The record of a new run of such rows."""
    return RunRecord(new_run_id(), utc_now(), ["run", "collectives"], ["collectives"], "quick", seed)


def _training_step() -> tuple[Suite, Case]:
    """A small training step of one process.

    Raises:
        UsageError: no suite of training steps is installed.
    """
    from bench.registry import load_suite

    suite = load_suite(SUITE)
    (case,) = suite.cases("quick", {"system": ["plain"], "ranks": [1]})
    return suite, case


def _nothing() -> None:
    pass


class _Loop(Workload):
    """A run is one sample of the loop's overhead."""

    def __init__(self, device: str) -> None:
        from bench.measure.clock import loop_for
        from bench.measure.group import RankGroup
        from bench.measure.progress import Progress
        from bench.measure.runner import counted

        self._timed = loop_for(device)
        self._prepare = counted(self.prepare, Progress())
        self._barrier = RankGroup().barrier
        self._calls = [_nothing] * LOOP_ITERATIONS
        self._overheads_ns: list[float] = []

    def run(self) -> None:
        # By turns: a clock that changes its frequency slows both.
        before, timed, after = self._bare_ns(), self._timed_ns(), self._bare_ns()
        self._overheads_ns.append((timed - (before + after) / 2) / LOOP_ITERATIONS)

    def observations(self) -> Mapping[str, Sequence[float]]:
        return {"loop_overhead": self._overheads_ns}

    def check(self) -> int:
        """Iterations that were not timed once, in order, without overlap."""
        calls: list[int] = []
        note = [lambda: calls.append(time.perf_counter_ns())] * LOOP_ITERATIONS
        entries, durations = self._timed(note, self._prepare, self._barrier)
        ends = [entry + duration for entry, duration in zip(entries, durations, strict=True)]
        inside = [entry <= call <= end for entry, call, end in zip(entries, calls, ends, strict=False)]
        after_the_last = [end <= entry for end, entry in zip(ends, entries[1:], strict=False)]
        return abs(len(calls) - LOOP_ITERATIONS) + inside.count(False) + after_the_last.count(False)

    def _timed_ns(self) -> int:
        start = time.perf_counter_ns()
        self._timed(self._calls, self._prepare, self._barrier)
        return time.perf_counter_ns() - start

    def _bare_ns(self) -> int:
        run = _nothing
        start = time.perf_counter_ns()
        for _ in range(LOOP_ITERATIONS):
            run()
        return time.perf_counter_ns() - start


class _Stored(Workload):
    """A workload with a store in a temporary folder."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bench-self-"))

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class _Seal(_Stored):
    """A run writes all rows into an empty store and seals them."""

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._rows = list(synthetic_rows(rows, seed))
        self._store = self._folder / "none"

    def prepare(self) -> None:
        shutil.rmtree(self._store, ignore_errors=True)
        self._store = self._folder / new_run_id()

    def run(self) -> None:
        from bench.store.writer import RunWriter

        with RunWriter(self._store, synthetic_record(self._seed)) as writer:
            for start in range(0, len(self._rows), ROWS_A_CASE):
                writer.append(self._rows[start : start + ROWS_A_CASE])
            writer.seal()

    def check(self) -> int:
        """Rows that are not read back as they were written."""
        from bench.store.reader import Store

        stored = Store(self._store).rows()
        same = sum(one == other for one, other in zip(stored, self._rows, strict=False))
        return max(len(stored), len(self._rows)) - same


class _Query(_Stored):
    """A run opens a store of several runs and queries all rows of it."""

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__()
        from bench.store.reader import Store

        first = list(synthetic_rows(-(-rows // STORED_RUNS), seed))
        self._expected = _medians(first)
        _store_variations(self._folder, first, seed)
        self._reader = Store(self._folder)
        self._answer: list[dict[str, object]] = []

    def run(self) -> None:
        self._answer = self._reader.query(QUERY).to_dict("records")  # type: ignore[assignment]

    def check(self) -> int:
        """Groups whose median is not what plain Python finds."""
        found = {(group["metric"], group["op"]): group["value"] for group in self._answer}
        groups = found.keys() | self._expected.keys()
        return sum(not _close(found.get(group), self._expected.get(group)) for group in groups)


def _factor(variation: int) -> float:
    return 1 + variation / 16


def _store_variations(store: Path, rows: Sequence[Row], seed: int) -> None:
    """Store one run, and it again with its values multiplied, ``STORED_RUNS`` runs in all."""
    from bench.store.catalog import Catalog
    from bench.store.columns import COLUMNS, connect, literal, quoted
    from bench.store.layout import part_path
    from bench.store.parquet import Footer, SealedPart, write_parquet
    from bench.store.row import SCHEMA_VERSION
    from bench.store.views import PARTS_VIEW, create_parts_view
    from bench.store.writer import RunWriter

    with RunWriter(store, synthetic_record(seed)) as writer:
        writer.append(rows)
        writer.seal()
    catalog = Catalog.read(store)
    with connect() as con:
        create_parts_view(con, catalog, catalog.copies)
        for variation in range(1, STORED_RUNS):
            record = synthetic_record(seed)
            replaced = {"run_id": literal(record.run_id), "value": f"value * {_factor(variation)}::DOUBLE"}
            columns = ", ".join(f"{replaced.get(name, quoted(name))} AS {quoted(name)}" for name in COLUMNS)
            # Only queried, never verified, so the digest of these rows is left out.
            part = SealedPart(record, number=1, first_row=0, rows=len(rows), sha256="")
            target = part_path(store, record.run_id, 1, ".parquet")
            write_parquet(con, f"SELECT part, {columns} FROM {PARTS_VIEW}", Footer(SCHEMA_VERSION, 0, (part,)), target)


def _medians(rows: Iterable[Row]) -> dict[tuple[object, object], float]:
    """What ``QUERY`` must answer on the store of ``_store_variations``."""
    groups: dict[tuple[object, object], list[float]] = {}
    for row in rows:
        size = row.params["bytes"]
        if row.status == "ok" and row.value is not None and isinstance(size, int) and size > 1048576:
            values = groups.setdefault((row.metric, row.params["op"]), [])
            values += [row.value * _factor(variation) for variation in range(STORED_RUNS)]
    return {group: median(values) for group, values in groups.items()}


def _close(found: object, expected: float | None) -> bool:
    return isinstance(found, float) and expected is not None and abs(found - expected) <= 1e-12 * abs(expected)
