"""google/benchmark's JSON: repetitions, aggregates, errors, counters, old files, logs around it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def text(*entries: dict[str, Any], **context: Any) -> str:
    return json.dumps({"context": {"num_cpus": 2, **context}, "benchmarks": list(entries)})


def entry(name: str = "BM", real: float = 1.0, unit: str = "ns", **more: Any) -> dict[str, Any]:
    return {"name": name, "run_type": "iteration", "real_time": real, "cpu_time": real, "time_unit": unit, **more}


def test_repetitions_are_samples(read: Callable) -> None:
    found = read("google-benchmark", "1.7_repetitions.json")
    assert found.faults == []
    row = found.of("real_time", benchmark="BM_Copy/1024")
    assert (row.n, len(row.samples), row.unit, row.better) == (3, 3, "ns", "lower")
    assert row.samples[0] == pytest.approx(24.579789574424861)
    assert row.value == sorted(row.samples)[1]
    rate = found.of("bandwidth", benchmark="BM_Copy/1024")
    assert (rate.unit, rate.samples[0]) == ("GB/s", pytest.approx(87.699026482457443))
    counter = found.of("depth", benchmark="BM_Copy/1024")
    assert (counter.value, counter.better, counter.definition) == (3.5, "unknown", "value/imported-v1")
    assert found.contents.tells_machine
    assert "host_name" not in found.contents.identity
    assert "mhz_per_cpu" not in found.contents.identity, "the clock is not the same from run to run"
    assert found.contents.started_at.startswith("2026-11-30T18:04:06")


def test_errors_are_failed_rows_with_their_message_as_text(read: Callable) -> None:
    row = read("google-benchmark", "1.7_repetitions.json").of("real_time", benchmark="BM_Fails")
    assert (row.status, row.value) == ("failed", None)
    assert row.reason.startswith('no such device <b>"x"</b>')


def test_threads_and_units(read: Callable) -> None:
    row = read("google-benchmark", "1.7_plain.json").of("real_time", threads=2)
    assert 0 < row.value < 1e5, "microseconds of the file, in nanoseconds"
    found = read("google-benchmark", text=text(entry(unit="ms"), entry("BM2", 2, "s")))
    assert [row.value for row in found.rows if row.metric == "real_time"] == [1e6, 2e9]


def test_aggregates_alone_give_the_median(read: Callable) -> None:
    whole, summed = (read("google-benchmark", f"1.7_{kind}.json") for kind in ("repetitions", "aggregates_only"))
    row = summed.of("real_time", benchmark="BM_Copy/1024")
    assert (row.samples, row.n, row.definition) == ([], 3, "real_time/google-benchmark-v1")
    assert {(r.case, r.metric) for r in whole.rows} == {(r.case, r.metric) for r in summed.rows}


def test_a_file_of_2016(read: Callable) -> None:
    found = read("google-benchmark", "old_2016.json")
    assert found.faults == []
    assert found.of("real_time", benchmark="BM_Two").samples == [9.0, 8.0]


def test_skipped_and_not_finite(read: Callable) -> None:
    found = read("google-benchmark", text=text(entry(skipped=True, skip_message="no AVX")))
    assert {(row.status, row.reason) for row in found.rows} == {("skipped", "no AVX")}
    found = read("google-benchmark", text=text(entry()).replace('"cpu_time": 1.0', '"cpu_time": -NaN'))
    assert found.of("cpu_time").status == "failed"
    assert found.of("real_time").status == "ok"


def test_log_lines_before_and_a_cut_file(read: Callable) -> None:
    found = read("google-benchmark", text="***WARNING*** CPU scaling is enabled\n" + text(entry()))
    assert len(found.rows) == 2
    assert any("line 1: 1 line(s) around the JSON" in note for note in found.contents.notes)
    cut = read("google-benchmark", text='{\n "context": {},\n "benchmarks": [\n  {"name": "a",\n')
    assert cut.rows == []
    assert cut.faults[0][0] >= 4


def test_faults_name_the_line_of_the_entry(read: Callable) -> None:
    lines = [
        '{"context": {"num_cpus": 2},',
        '"benchmarks": [',
        json.dumps(entry()) + ",",
        "7,",
        json.dumps(entry(unit="h")),
    ]
    found = read("google-benchmark", text="\n".join(lines) + "]}")
    assert [line for line, _ in found.faults] == [4, 5]
    assert len(found.rows) == 2


def test_several_documents_are_several_starts(read: Callable) -> None:
    found = read("google-benchmark", text=text(entry(real=1)) + "\n" + text(entry(real=3)))
    row = found.of("real_time")
    assert (row.value, row.rounds) == (2.0, [1, 1])


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"benchmarks": 3}', '{"benchmarks": []}', '{"benchmarks": [{}]}'])
def test_files_without_a_benchmark(read: Callable, broken: str) -> None:
    found = read("google-benchmark", text=broken)
    assert found.rows == []
    assert found.faults
