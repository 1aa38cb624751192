"""JSON: one object, every field, no number that JSON cannot hold."""

from __future__ import annotations

import json
import math
from dataclasses import fields

from bench.gate_output.as_json import SCHEMA_VERSION, render
from bench.gate_result import Comparison
from tests.bench.gate_rows import HOSTILE, comparison, hostile_result, regressed, result


def test_it_is_one_line_with_all_fields() -> None:
    text = render(result(regressed(), comparison(), baseline_runs=("a",), candidate_runs=("b",)))
    assert text.count("\n") == 1
    found = json.loads(text)
    assert found["schema_version"] == SCHEMA_VERSION
    assert (found["verdict"], found["exit_code"]) == ("regressed", 1)
    assert found["counts"]["pass"] == found["counts"]["regressed"] == 1
    assert found["baseline"] == {"label": "main", "runs": ["a"]}
    assert all(set(one) == {field.name for field in fields(Comparison)} for one in found["comparisons"])


def test_what_is_not_finite_is_null() -> None:
    odd = comparison(interval=(-math.inf, math.inf), minimum_detectable_effect=math.inf, params={"x": math.nan})
    (one,) = json.loads(render(result(odd)), parse_constant=lambda name: 1 / 0)["comparisons"]
    assert (one["interval"], one["minimum_detectable_effect"], one["params"]) == ([None, None], None, {"x": None})


def test_hostile_names_are_kept_as_data() -> None:
    found = json.loads(render(hostile_result()))
    assert found["comparisons"][0]["suite"] == HOSTILE.replace("\udc80", "?")
