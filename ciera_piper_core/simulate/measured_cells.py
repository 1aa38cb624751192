"""Measured exchanges: rows of the suite ``alltoall``, from a run's file, a store or a platform profile.

Files are read as what they are, JSON lines or Parquet or a profile's JSON, so that nothing here
needs the program that wrote them.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ciera_piper_core.alltoall import TrafficKind
    from ciera_piper_core.simulate import Algorithm

SUITE, METRIC, OP = "alltoall", "latency", "all_to_all"
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
STORE_VARIABLE, DEFAULT_STORE = "BENCH_STORE", "results/store"
LATEST = "latest"

REPLAYED: tuple[TrafficKind, ...] = ("uniform", "zipf", "hot_rank", "idle_rank")
"""Traffic whose matrix follows from a row's parameters alone."""

NOT_MODELLED = "the simulator does not know the algorithm {}"
NOT_REPLAYED = "the matrix of {} traffic is not known from its row"


@dataclass(frozen=True)
class Cell:
    """One exchange, measured.

    Attributes:
        algorithm: that was timed.
        ranks, nodes: of the group.
        bytes: that each rank sends before skew takes effect, its share for itself included.
        seconds: of it, the median.
        traffic, seed: who sends how much to whom; the seed counts for skewed traffic alone.
        spread: half of what lies between the quartiles of the samples, over the median; 0 if unknown.
    """

    algorithm: Algorithm
    ranks: int
    nodes: int
    bytes: int
    seconds: float
    traffic: TrafficKind = "uniform"
    seed: int = 0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.ranks or self.ranks < 2:
            raise ValueError(f"a cell needs two ranks or more, and no more nodes than ranks: {self}")
        if self.bytes < 1 or not 0 < self.seconds < float("inf"):
            raise ValueError(f"a cell needs a byte or more, and seconds above 0: {self}")

    @property
    def bytes_per_peer(self) -> float:
        """What each rank sends to each before skew."""
        return self.bytes / self.ranks

    @property
    def ranks_per_node(self) -> int:
        """Of full nodes; the last may hold fewer."""
        return -(-self.ranks // self.nodes)

    def job(self) -> Job:
        """The group, on as few nodes as were used."""
        return Job.even(self.ranks, self.ranks_per_node)

    def describe(self) -> str:
        """A few words for people."""
        return f"{self.algorithm}, {self.ranks} ranks on {self.nodes} nodes, {self.bytes} bytes, {self.traffic}"


@dataclass(frozen=True)
class Cells:
    """What a source holds.

    Attributes:
        cells: one for each distinct exchange; the median where it was measured more than once.
        source: file, or run and store, for people.
        place: device, backend, and the lab's shape if it was one: where all cells were measured.
        skipped: reasons with the number of rows that were left out for each.
    """

    cells: tuple[Cell, ...]
    source: str
    place: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def lab(self) -> str:
        """Shape of the emulated cluster; empty for real ones."""
        return self.place.get("lab", "")


def read_cells(source: str) -> Cells:
    """The cells of a source.

    Args:
        source: file of rows as JSON lines (``bench run alltoall --json - > FILE``, or an unsealed run of a
            store), a sealed run (``.parquet``), a profile of ``bench characterize`` or its folder,
            or a run's id, or ``latest``, in the store of ``BENCH_STORE`` (else ``results/store``).

    Raises:
        ValueError: nothing is there, a file cannot be read, its cells were measured in different
            places, or there is none; the message says what is wrong and what to do.
    """
    path = Path(source)
    if path.is_dir():
        path /= "profile.json"
    if not path.exists():
        return _cells_of_run(source)
    if path.suffix == ".json" and (profile := _profile(path)) is not None:
        return cells_of_rows(_rows_of_profile(profile, path), str(path))
    rows = _parquet_rows([path]) if path.suffix == ".parquet" else _json_rows(path)
    return cells_of_rows(rows, str(path))


def cells_of_rows(rows: Iterable[Mapping[str, Any]], source: str) -> Cells:
    """The cells of rows, given as mappings of a row's fields.

    Raises:
        ValueError: there is none, or they were measured in different places.
    """
    seconds: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    skipped: Counter[str] = Counter()
    places: dict[tuple[tuple[str, str], ...], int] = {}
    for row in rows:
        if row.get("suite") != SUITE or row.get("metric") != METRIC:
            continue
        params = row["params"] if isinstance(row["params"], dict) else json.loads(row["params"])
        if reason := _why_not(row, params):
            skipped[reason] += 1
            continue
        place = tuple((name, str(params[name])) for name in ("device", "backend", "lab") if name in params)
        places[place] = places.get(place, 0) + 1
        seed = int(params.get("seed", 0)) if params["traffic"] != "uniform" else 0
        key = (*(params[name] for name in ("algorithm", "ranks", "nodes", "bytes", "traffic")), seed)
        found = float(row["value"]) * SECONDS[str(row["unit"])], _spread(row.get("samples") or ())
        seconds.setdefault(key, []).append(found)
    if len(places) > 1:
        names = "; ".join(", ".join(f"{name} {value}" for name, value in place) for place in places)
        raise ValueError(f"{source}: rows of different places ({names}); give a run of one of them")
    if not seconds:
        why = "; ".join(f"{count} rows: {reason}" for reason, count in skipped.items())
        raise ValueError(
            f"{source}: no measured row of the suite alltoall to fit to{f' ({why})' if why else ''};"
            " measure some with `bench run alltoall`"
        )
    cells = tuple(
        Cell(
            algorithm,
            int(ranks),
            int(nodes),
            int(size),
            statistics.median(value for value, _ in values),
            traffic,
            seed,
            statistics.median(spread for _, spread in values),
        )
        for (algorithm, ranks, nodes, size, traffic, seed), values in seconds.items()
    )
    return Cells(cells, source, dict(next(iter(places))), dict(skipped))


def _spread(samples: Sequence[float]) -> float:
    """See ``Cell.spread``."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / middle if middle > 0 else 0.0


def _why_not(row: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """Why a row is no cell; empty if it is."""
    if row.get("status", "ok") != "ok" or row.get("value") is None:
        return f"status {row.get('status')}"
    if row.get("wrong"):
        return "its data arrived wrong"
    if params.get("scope") == "simulated":
        return "it was simulated"
    if params.get("op", OP) != OP:
        return f"the simulator does not know the operation {params['op']}"
    if params.get("algorithm") not in ALGORITHMS:
        return NOT_MODELLED.format(params.get("algorithm"))
    if params.get("traffic", "uniform") not in REPLAYED:
        return NOT_REPLAYED.format(str(params["traffic"]).partition(":")[0])
    if row.get("unit") not in SECONDS:
        return f"unit {row.get('unit')}"
    if missing := [name for name in ("ranks", "nodes", "bytes", "traffic") if name not in params]:
        return f"it does not say its {missing[0]}"
    if params["ranks"] < 2 or float(row["value"]) <= 0:
        return "nothing was exchanged"
    return ""


def _json_rows(path: Path) -> list[Mapping[str, Any]]:
    """All rows of a file of JSON lines."""
    lines = _text(path).splitlines()
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.strip() else None
        except json.JSONDecodeError as error:
            if number == len(lines):
                break  # A run that is still written may end in a torn line.
            raise ValueError(f"{path}: line {number} is not JSON ({error}); give a file of rows") from error
        if isinstance(record, dict) and "metric" in record:
            rows.append(record)
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _parquet_rows(paths: Sequence[Path]) -> list[Mapping[str, Any]]:
    """The latency rows of the suite in sealed runs; one file may hold several runs."""
    import duckdb

    columns = ("run_id", "suite", "metric", "params", "value", "unit", "status", "wrong", "samples")
    query = f"SELECT {', '.join(columns)} FROM read_parquet(?, union_by_name = true) WHERE suite = ? AND metric = ?"
    try:
        with duckdb.connect() as connection:
            found = connection.execute(query, [[str(path) for path in paths], SUITE, METRIC]).fetchall()
    except duckdb.Error as error:
        raise ValueError(f"{paths[0]}: cannot be read as a sealed run: {error}") from error
    return [dict(zip(columns, values, strict=True)) for values in found]


def _cells_of_run(name: str) -> Cells:
    """Of a run in the store, by its id or ``latest``."""
    store = Path(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)
    files = sorted((store / "runs").glob("*"))
    sealed = [each for each in files if each.suffix == ".parquet"]
    rows = _parquet_rows(sealed) if sealed else []
    for each in files:
        if each.suffix == ".jsonl":
            rows += _json_rows(each)
    runs = {str(row["run_id"]) for row in rows if row["suite"] == SUITE}
    wanted = max(runs) if name == LATEST and runs else name
    if wanted in runs:
        return cells_of_rows([row for row in rows if row["run_id"] == wanted], f"run {wanted}")
    raise ValueError(
        f"{name!r} is neither a file nor a run of the suite alltoall in the store {str(store)!r}; give rows of"
        " `bench run alltoall --json -`, a profile of `bench characterize`, or a run's id (`bench db list` has them)"
    )


def _profile(path: Path) -> dict[str, Any] | None:
    """The profile in a file; None if it holds something else."""
    try:
        record = json.loads(_text(path))
    except json.JSONDecodeError:
        return None  # JSON lines.
    return record if isinstance(record, dict) and "metric" not in record else None


def _rows_of_profile(record: Mapping[str, Any], path: Path) -> list[Mapping[str, Any]]:
    """The latency rows behind a profile's curves."""
    texts = ("op", "algorithm", "traffic", "dtype", "backend", "device", "scope", "lab")
    try:
        return [
            {
                "suite": curve["suite"],
                "metric": METRIC,
                "unit": "us",
                "value": point["latency_us"],
                "params": {
                    **curve["params"],
                    **{name: curve[name] for name in texts if curve[name]},
                    "ranks": curve["ranks"],
                    "nodes": curve["nodes"],
                    "bytes": point["bytes"],
                },
            }
            for curve in record["collectives"]
            for point in curve["points"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: no profile of `bench characterize`: {error!r}") from error
