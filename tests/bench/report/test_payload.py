"""The data that the scripts get: columns, fits, and JSON that cannot leave its element."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import LATENCY
from bench.profile_builder import build_profile
from bench.report.cases import gather
from bench.report.payload import break_even_table, fit_table, suite_payload, to_json
from tests.bench.report.sample_rows import LAB, row, sample_rows, sample_runs


def test_columns_hold_what_the_rows_hold() -> None:
    rows = [row({"bytes": size, "op": "copy"}, "latency", LATENCY, value=size / 3) for size in (4096, 1024)]
    rows.append(row({"bytes": 2048, "op": "copy"}, "latency", LATENCY, status="failed", reason="raised\nstack"))
    payload = suite_payload(gather(rows)[0])
    assert payload["fixed"] == {"op": "copy"}
    [param] = payload["params"]
    assert (param["name"], param["numeric"], param["size"]) == ("bytes", True, True)
    assert [param["texts"][code] for code in param["codes"]] == ["1KiB", "2KiB", "4KiB"]
    columns = payload["metrics"][0]["rows"]
    assert columns["value"] == [341.333, None, 1365.33]
    assert columns["n"] == [24, 0, 24]
    assert columns["low"][1] is None
    assert columns["low"][0] < columns["value"][0] < columns["high"][0]
    reasons = payload["reason"]
    assert [reasons["values"][code] for code in reasons["codes"]] == ["", "raised", ""]
    assert "fit" not in columns


def test_parameters_that_some_cases_lack() -> None:
    rows = [
        row(params, "latency", LATENCY, value=1.0)
        for params in ({"ranks": 2}, {"ranks": 8, "lab": LAB}, {"ranks": 4, "lab": ""})
    ]
    payload = suite_payload(gather(rows)[0])
    assert [param["codes"] for param in payload["params"]] == [[0, 1, 2], [-1, 0, 1]]
    assert payload["emulated"] == [0, 0, 1]


def test_equal_numbers_of_other_types_stay_apart() -> None:
    rows = [row({"flag": value}, "latency", LATENCY, value=1.0) for value in (True, 1)]
    [param] = suite_payload(gather(rows)[0])["params"]
    assert sorted(param["texts"]) == ["1", "true"]
    assert not param["numeric"]


def test_the_whole_sample_is_plain_json() -> None:
    for suite in gather(sample_rows()):
        payload = suite_payload(suite)
        assert json.loads(to_json(payload)) == json.loads(json.dumps(payload))


def test_fits_are_at_the_rows_that_they_were_made_from() -> None:
    rows, runs = sample_rows(), sample_runs()
    profile = build_profile(rows, runs)
    payload = suite_payload(gather([made for made in rows if made.suite == "alltoall"])[0], profile)
    latency = next(metric for metric in payload["metrics"] if metric["name"] == "latency")["rows"]
    for value, fit, residual in zip(latency["value"], latency["fit"], latency["residual"], strict=True):
        assert fit / value - 1 == pytest.approx(residual, abs=2e-5)


def test_fit_table_has_a_row_a_segment_and_says_what_all_share() -> None:
    profile = build_profile(sample_rows(), sample_runs())
    table: Any = fit_table(profile)
    segments = sum(len(curve.fit.segments) if curve.fit else 1 for curve in profile.collectives)
    assert len(table["rows"]) == segments
    assert table["shared"] == {"backend": "gloo", "device": "cpu"}
    emulated = [each for each in table["rows"] if each["lab"]]
    assert all(each["curve"].startswith("collectives · ") for each in emulated)
    assert {each["curve"].rpartition(" · ")[2] for each in emulated} == {"lab"}


def test_curves_that_differ_in_ranks_alone_still_have_a_name() -> None:
    alike = [made for made in sample_rows() if made.suite == "allgather_latency"]
    table: Any = fit_table(build_profile(alike, sample_runs()))
    assert {each["curve"] for each in table["rows"]} == {"all_gather"}


def test_a_curve_without_a_fit_says_why() -> None:
    few = [made for made in sample_rows() if made.suite == "alltoall" and int(made.params["bytes"]) <= 8192]
    table: Any = fit_table(build_profile(few, sample_runs()))
    assert all(each["note"] and "alpha_us" not in each for each in table["rows"])


def test_a_fit_that_is_far_off_at_a_point_is_poor() -> None:
    rows = [made for made in sample_rows() if made.suite == "alltoall" and made.params["traffic"] == "zipf"]
    for made in rows:
        if made.metric == "latency" and made.params["bytes"] == 8192 and made.params["ranks"] == 2:
            made.value = (made.value or 0.0) * 12
    table: Any = fit_table(build_profile(rows, sample_runs()))
    assert {(each["ranks"], each["poor"], each["worst"] > 0.5) for each in table["rows"]} == {
        (2, True, True),
        (4, False, False),
    }


def test_break_even_table() -> None:
    table: Any = break_even_table(build_profile(sample_rows(), sample_runs()))
    assert [each["curve"] for each in table["rows"]] == [
        f"{distribution} · {model}" for distribution in ("uniform", "zipf") for model in ("mixtral-8x7b", "olmoe-1b-7b")
    ]
    assert table["shared"]["experts"] == "8"
    assert all(faster == "looped" for each in table["rows"] for _, faster in each["crossings"])


def test_no_profile_no_tables() -> None:
    assert fit_table(None) is None
    assert break_even_table(None) is None
    memory = [made for made in sample_rows() if made.suite == "memory"]
    profile = build_profile(memory, sample_runs())
    assert fit_table(profile) is None
    assert break_even_table(profile) is None


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_comes_back_and_cannot_leave_its_element(value: Any) -> None:
    text = to_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)
