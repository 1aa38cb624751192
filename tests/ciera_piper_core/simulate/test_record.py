"""Rows of a sweep: rows as the harness stores them, with the suite's parameters and definitions."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from bench.definitions import DEFINITIONS, busbw_factor
from bench.store.row import ROW_FIELDS, Row
from bench.suite import Case
from ciera_piper_core.alltoall.router_trace import read_trace
from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.record import METRICS, rows
from ciera_piper_core.simulate.sweep import Sweep, predict_sweep
from suites.alltoall import AllToAllSuite

if TYPE_CHECKING:
    from pathlib import Path

    from ciera_piper_core.simulate.sweep import Point

FRONTIER = load_machine("frontier")
SWEEP = Sweep(FRONTIER, (1, 8, 32), (1 << 20,), traffic=("uniform", "hot_rank"), seed=5)
POINTS = predict_sweep(SWEEP)
ROWS = [Row.from_dict(record) for record in rows(POINTS, FRONTIER, SWEEP.seed)]


def metrics_of(point: Point) -> list[str]:
    """As the suite does, flat is not compared with itself."""
    return [name for name in METRICS if name != "speedup_over_flat" or point.algorithm != "flat"]


def test_each_is_a_row_of_the_store() -> None:
    assert len(ROWS) == sum(len(metrics_of(point)) for point in POINTS)
    assert [row.row_id for row in ROWS] == list(range(len(ROWS)))
    assert len({row.run_id for row in ROWS}) == 1
    assert re.fullmatch(r"\d{8}T\d{9}-[0-9a-f]{8}", ROWS[0].run_id)
    for row, record in zip(ROWS, rows(POINTS, FRONTIER, SWEEP.seed), strict=True):
        assert tuple(record) == tuple(name for name in asdict(row))
        assert set(record) == set(ROW_FIELDS)
        assert row.case == Case(row.params).id
        assert json.loads(row.to_json())["params"] == row.params


def test_parameters_are_the_suite_s_and_the_place_s() -> None:
    axes = {axis.name for axis in AllToAllSuite.axes}
    for row in ROWS:
        assert axes | {"device", "nodes", "scope", "backend", "platform"} <= set(row.params)
        assert (row.suite, row.params["scope"], row.params["platform"]) == (AllToAllSuite.name, "simulated", "frontier")
        assert ("seed" in row.params) == (row.params["traffic"] != "uniform")


def test_definitions_are_the_harness_s() -> None:
    suite = {metric.name: metric for metric in AllToAllSuite.metrics}
    for name, (unit, better, definition) in METRICS.items():
        if name in suite:
            assert (unit, better, definition) == (suite[name].unit, suite[name].better, suite[name].definition.id)
        if definition in DEFINITIONS:
            assert DEFINITIONS[definition].unit == unit


def test_values() -> None:
    remaining = iter(ROWS)
    for point in POINTS:
        of_point = {row.metric: row for row in islice(remaining, len(metrics_of(point)))}
        assert list(of_point) == metrics_of(point)
        if point.prediction is None:
            assert {row.status for row in of_point.values()} == {"skipped"}
            assert {row.reason for row in of_point.values()} == {"an all-to-all needs at least 2 ranks"}
            continue
        seconds = point.prediction.seconds
        assert of_point["latency"].value == pytest.approx(1e6 * seconds)
        assert of_point["algbw"].value == pytest.approx(point.largest_bytes / seconds / 1e9)
        factor = busbw_factor("all_to_all", point.ranks)
        assert of_point["busbw"].value == pytest.approx(factor * point.largest_bytes / seconds / 1e9)
        if point.algorithm != "flat":
            assert of_point["speedup_over_flat"].value == point.speedup
        assert of_point["bottleneck"].params["resource"] == point.prediction.bottleneck
        assert of_point["bottleneck"].value == point.bottleneck_share
        assert "resource" not in of_point["latency"].params


def test_each_says_what_was_measured_and_what_was_not() -> None:
    row = next(row for row in ROWS if row.value is not None and row.params["ranks"] == 32)
    assert row.params["measured"] == "none"
    assert row.params["assumed"] == "+".join(("intra_node", "inter_node", "topology", *FRONTIER.terms.assumed))
    terms = FRONTIER.terms.with_value("message_inter_s", 7e-6, Term("measured", "a run"))
    rates = {**FRONTIER.known, "inter_node": Term("measured", "a run")}
    machine = replace(FRONTIER, terms=terms, known=rates)
    (first, *_) = rows(predict_sweep(Sweep(machine, (32,), (1 << 20,), ("flat",))), machine, 0)
    assert first["params"]["measured"] == "inter_node+message_inter_s"
    assert set(first["params"]["assumed"].split("+")).isdisjoint({"inter_node", "message_inter_s"})


def test_a_replay_names_its_trace_by_digest(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"counts": [1, 2, 3, 4]}')
    sweep = Sweep(FRONTIER, (4, 8), (1 << 20,), ("flat",), (f"replay:{trace}",), 5)
    records = list(rows(predict_sweep(sweep), FRONTIER, sweep.seed))
    assert records[0]["params"]["trace"] == read_trace(trace).digest
    assert "seed" not in records[0]["params"]
    assert [record["status"] for record in records[:: len(METRICS) - 1]] == ["ok", "skipped"]
