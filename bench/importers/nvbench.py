"""Reads nvbench's JSON: tagged summaries of each state, and its samples where the ``-bin`` folder lies beside it."""

from __future__ import annotations

import array
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.importers.contents import Contents, Source, as_int, as_list, as_number, quoted
from bench.importers.definitions import (
    NVBENCH_BANDWIDTH,
    NVBENCH_ITEMS,
    NVBENCH_MEAN,
    NVBENCH_MEDIAN,
    NVBENCH_SHARE,
)
from bench.importers.json_text import documents
from bench.importers.other_values import add_other, own_params

if TYPE_CHECKING:
    from bench.definitions import Definition
    from bench.importers.json_text import Document

SAMPLE_TIMES = "nv/json/bin:nv/cold/sample_times"
SAMPLE_BYTES = 4
MOST_SAMPLES = 50_000_000
"""More cannot be a benchmark's samples; a file beside the JSON is not read into memory without a limit."""

TIMES = {"nv/cold/time/gpu": "gpu_time", "nv/cold/time/cpu": "cpu_time", "nv/cpu_only/time/cpu": "cpu_only_time"}
SIZES = {"nv/cold/time/gpu": "nv/cold/sample_size", "nv/cold/time/cpu": "nv/cold/sample_size"}
BATCH = {"nv/batch/time/gpu/mean": "batch_gpu_time", "nv/batch/time/cpu/mean": "batch_cpu_time"}
RATES: dict[str, tuple[str, Definition, float]] = {
    "nv/cold/bw/item_rate": ("items_rate", NVBENCH_ITEMS, 1.0),
    "nv/cold/bw/global/bytes_per_second": ("bandwidth", NVBENCH_BANDWIDTH, 1e-9),
    "nv/cold/bw/global/utilization": ("bandwidth_share", NVBENCH_SHARE, 1.0),
    "nv/cpu_only/bw/item_rate": ("cpu_only_items_rate", NVBENCH_ITEMS, 1.0),
    "nv/cpu_only/bw/global/bytes_per_second": ("cpu_only_bandwidth", NVBENCH_BANDWIDTH, 1e-9),
}
HINTS = {
    "duration": "s",
    "item_rate": "1/s",
    "byte_rate": "B/s",
    "bytes": "B",
    "percentage": "ratio",
    "frequency": "Hz",
}
"""The unit of a summary that the benchmark itself adds, by its hint."""
GPU_FACTS = ("name", "sm_version", "number_of_sms", "global_memory_size", "global_memory_bus_width", "ecc_state")


def read(source: Source) -> Contents:
    """All states of all benchmarks."""
    contents = Contents("nvbench")
    for launch, document in enumerate(documents(source.text, contents)):
        benchmarks = document.data.get("benchmarks")
        if not isinstance(benchmarks, list):
            contents.fault(document.line, "no list 'benchmarks'; nvbench writes one with --json FILE")
            continue
        devices = _read_machine(contents, document)
        if not benchmarks:
            contents.fault(document.line, "the list 'benchmarks' is empty: nothing was measured")
        lines = document.lines_of("benchmarks")
        for number, benchmark in enumerate(benchmarks):
            line = lines[number] if number < len(lines) else document.line
            if not isinstance(benchmark, dict) or not isinstance(benchmark.get("states"), list):
                contents.fault(line, f"benchmarks[{number}] has no list 'states': {quoted(benchmark)}")
                continue
            if not benchmark["states"]:
                contents.fault(line, f"{quoted(benchmark.get('name'))} has no state: nothing was measured")
            for place, state in enumerate(benchmark["states"]):
                if isinstance(state, dict):
                    _State(source, contents, str(benchmark.get("name")), state, devices, line, launch).read()
                else:
                    contents.fault(line, f"states[{place}] of {quoted(benchmark.get('name'))} is {quoted(state)}")
    return contents


def _read_machine(contents: Contents, document: Document) -> dict[int, str]:
    """The names of the devices by number; they, and nvbench's version, go into the identity."""
    data = document.data
    listed = data["devices"] if isinstance(data.get("devices"), list) else []
    devices = [device for device in listed if isinstance(device, dict)]
    identity: dict[str, Any] = {}
    if devices:
        identity["gpus"] = [{fact: device.get(fact) for fact in GPU_FACTS if fact in device} for device in devices]
        contents.tells_machine = True
    meta = data["meta"] if isinstance(data.get("meta"), dict) else {}
    versions = meta["version"] if isinstance(meta.get("version"), dict) else {}
    nvbench = versions.get("nvbench")
    if isinstance(nvbench, dict) and nvbench.get("string"):
        identity["harness"] = f"nvbench {nvbench['string']}"
    contents.identity = contents.identity or identity
    return {number: str(device.get("name")) for device in devices if (number := as_int(device.get("id"))) is not None}


class _State:
    """One point of a benchmark's axes on one device."""

    def __init__(
        self,
        source: Source,
        contents: Contents,
        benchmark: str,
        state: dict[str, Any],
        devices: dict[int, str],
        line: int,
        launch: int,
    ) -> None:
        self._source, self._contents, self._state, self._line = source, contents, state, line
        axes = {
            str(axis.get("name")): _typed(axis) for axis in as_list(state.get("axis_values")) if isinstance(axis, dict)
        }
        if not isinstance(state.get("axis_values"), (list, type(None))):
            contents.fault(line, f"the axes of {quoted(state.get('name'))} are {quoted(state['axis_values'])}")
        taken: dict[str, Any] = {"benchmark": benchmark}
        if (device := as_int(state.get("device"))) is not None and len(devices) > 1:
            taken["device"] = f"{device} {devices.get(device, '')}".strip()
        self._params = own_params(axes, taken)
        self._row: dict[str, Any] = {"launch": launch}
        summaries = [summary for summary in as_list(state.get("summaries")) if isinstance(summary, dict)]
        self._summaries = {str(summary.get("tag")): summary for summary in summaries}

    def read(self) -> None:
        """Add the state's rows; a skipped state has one, with the reason."""
        if self._state.get("is_skipped") is True:
            reason = str(self._state.get("skip_reason") or "nvbench skipped it without a reason")
            self._contents.add(
                "gpu_time", NVBENCH_MEDIAN, self._params, None, status="skipped", reason=reason, **self._row
            )
            return
        before = len(self._contents.rows)
        for stem, metric in TIMES.items():
            self._add_time(stem, metric)
        for tag, summary in self._summaries.items():
            self._add_summary(tag, summary)
        if len(self._contents.rows) == before:
            self._contents.fault(self._line, f"state {quoted(self._state.get('name'))} has no summary that is known")

    def _add_time(self, stem: str, metric: str) -> None:
        """The median of the samples, else the median that the file has, else the mean (before 2026)."""
        n = as_int(self._value(SIZES.get(stem, "nv/cpu_only/sample_size"))) or 0
        samples = self._samples() if stem == "nv/cold/time/gpu" else []
        if samples:
            self._contents.add(metric, NVBENCH_MEDIAN, self._params, median(samples), samples=samples, **self._row)
        elif f"{stem}/median" in self._summaries:
            value = self._value(f"{stem}/median")
            self._contents.add(metric, NVBENCH_MEDIAN, self._params, value, samples=(), n=n, **self._row)
        elif f"{stem}/mean" in self._summaries:
            value = self._value(f"{stem}/mean")
            self._contents.add(metric, NVBENCH_MEAN, self._params, value, samples=(), n=n, **self._row)

    def _add_summary(self, tag: str, summary: dict[str, Any]) -> None:
        value = self._value(tag)
        if tag in BATCH:
            self._contents.add(BATCH[tag], NVBENCH_MEAN, self._params, value, **self._row)
        elif tag in RATES:
            metric, definition, factor = RATES[tag]
            number = as_number(value)
            scaled = value if number is None else number * factor
            self._contents.add(metric, definition, self._params, scaled, samples=(), **self._row)
        elif tag.startswith("nv/"):
            if not tag.startswith(tuple(TIMES)) and tag != SAMPLE_TIMES:
                self._contents.note(
                    "summaries of spread, sizes, clocks and wall time are left out: they are no results"
                )
        elif as_number(value) is not None:
            unit = HINTS.get(str(summary.get("hint")), "")
            add_other(self._contents, str(summary.get("name") or tag), self._params, value, unit, **self._row)
        else:
            self._contents.fault(self._line, f"summary {quoted(tag)} has the value {quoted(value)}, which is no number")

    def _value(self, tag: str) -> object:
        """The number of a summary; 64-bit ones are strings in the file."""
        return self._datum(tag, "value")

    def _datum(self, tag: str, name: str) -> object:
        data = self._summaries.get(tag, {}).get("data")
        entries = data if isinstance(data, list) else []
        return next(
            (entry.get("value") for entry in entries if isinstance(entry, dict) and entry.get("name") == name), None
        )

    def _samples(self) -> list[float]:
        """The seconds of each sample, from the file that the summary names, if it lies where the JSON does."""
        named = self._datum(SAMPLE_TIMES, "filename")
        size = as_int(self._datum(SAMPLE_TIMES, "size"))
        if not isinstance(named, str):
            return []
        path = _beside(self._source.path, named)
        if path is None or size is None or not 0 < size <= MOST_SAMPLES:
            self._contents.note(f"the samples in {quoted(named)} are not beside the file; the summaries stand for them")
            return []
        samples = array.array("f")
        try:
            with path.open("rb") as file:
                samples.frombytes(file.read(size * SAMPLE_BYTES))
        except (OSError, ValueError) as error:
            self._contents.fault(self._line, f"the samples in {quoted(named)} cannot be read: {error}")
            return []
        if sys.byteorder == "big":
            samples.byteswap()
        if len(samples) != size:
            self._contents.fault(self._line, f"{quoted(named)} has {len(samples)} samples where {size} are announced")
            return []
        return samples.tolist()


def _beside(json_path: Path | None, named: str) -> Path | None:
    """The sample file: in its folder beside the JSON, wherever both were when nvbench wrote them.

    Only the last two parts of the name are used, so that a file cannot make us read any other.
    """
    if json_path is None:
        return None
    parts = Path(named.replace("\\", "/")).parts[-2:]
    if ".." in parts or len(parts) < 2:
        return None
    path = json_path.parent.joinpath(*parts)
    return path if path.is_file() else None


def _typed(axis: dict[str, Any]) -> object:
    """The value of an axis in its own type; int64 and float64 are strings in the file."""
    value, kind = axis.get("value"), axis.get("type")
    number = as_int(value) if kind == "int64" else as_number(value) if kind == "float64" else None
    return value if number is None else number
