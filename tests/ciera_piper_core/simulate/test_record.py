"""Rows of a sweep: rows as the harness stores them, with the suite's parameters and definitions."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest

from bench.definitions import DEFINITIONS, busbw_factor
from bench.store.row import ROW_FIELDS, Row
from bench.suite import Case
from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.record import METRICS, rows
from ciera_piper_core.simulate.sweep import Sweep, predict_sweep
from suites.alltoall import AllToAllSuite

FRONTIER = load_machine("frontier")
SWEEP = Sweep(FRONTIER, (1, 8, 32), (1 << 20,), traffic=("uniform", "hot_rank"), seed=5)
POINTS = predict_sweep(SWEEP)
ROWS = [Row.from_dict(record) for record in rows(POINTS, FRONTIER, SWEEP.seed)]


def test_each_is_a_row_of_the_store() -> None:
    assert len(ROWS) == len(POINTS) * len(METRICS)
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
    for number, point in enumerate(POINTS):
        of_point = {row.metric: row for row in ROWS[number * len(METRICS) : (number + 1) * len(METRICS)]}
        assert list(of_point) == list(METRICS)
        if point.prediction is None:
            assert {row.status for row in of_point.values()} == {"skipped"}
            assert {row.reason for row in of_point.values()} == {"an all-to-all needs at least 2 ranks"}
            continue
        seconds = point.prediction.seconds
        assert of_point["latency"].value == pytest.approx(1e6 * seconds)
        assert of_point["algbw"].value == pytest.approx(point.largest_bytes / seconds / 1e9)
        factor = busbw_factor("all_to_all", point.ranks)
        assert of_point["busbw"].value == pytest.approx(factor * point.largest_bytes / seconds / 1e9)
        assert of_point["speedup_over_flat"].value == point.speedup
        assert of_point["bottleneck"].params["resource"] == point.prediction.bottleneck
        assert of_point["bottleneck"].value == point.bottleneck_share
        assert "resource" not in of_point["latency"].params


def test_each_says_which_terms_were_measured() -> None:
    row = next(row for row in ROWS if row.value is not None and row.params["ranks"] == 32)
    assert row.params["terms_measured"] == "none"
    assert row.params["terms_assumed"] == "+".join(FRONTIER.terms.assumed)
    terms = FRONTIER.terms.with_value("message_inter_s", 7e-6, Term("measured", "a run"))
    machine = type(FRONTIER)(FRONTIER.name, FRONTIER.node, FRONTIER.network, terms)
    sweep = Sweep(machine, (32,), (1 << 20,), ("flat",))
    (first, *_) = rows(predict_sweep(sweep), machine, 0)
    assert first["params"]["terms_measured"] == "message_inter_s"
    assert "message_inter_s" not in first["params"]["terms_assumed"]
