"""JUnit XML: valid by the schema that CI systems share, verdicts as outcomes, any name."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gate_output.junit import render
from bench.policy import Policy
from tests.bench.gate_rows import comparison, hostile_result, regressed, result

CHILDREN = {
    "testsuites": ["testsuite"],
    "testsuite": ["properties", "testcase"],
    "properties": ["property"],
    "property": [],
    "testcase": ["skipped", "error", "failure", "system-out"],
    "skipped": [],
    "error": [],
    "failure": [],
    "system-out": [],
}
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "skipped": {"message"},
    "error": {"message", "type"},
    "failure": {"message", "type"},
    "system-out": set(),
}
"""Elements in their order, and attributes, of the schema of Ant's JUnit task, which CI systems read."""


def parsed(shown: Any) -> ElementTree.Element:
    """The document, after it is held against the schema."""
    root = ElementTree.fromstring(render(shown).encode())
    for element in root.iter():
        assert set(element.attrib) == ATTRIBUTES[element.tag]
        order = [CHILDREN[element.tag].index(child.tag) for child in element]
        assert order == sorted(order)
        if element.tag == "testcase":
            assert len([child for child in element if child.tag != "system-out"]) <= 1
    for suite in root:
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.get(name, "")) == len(suite.findall(f"testcase/{kind}"))
    for name in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(name, "")) == sum(int(suite.get(name, "")) for suite in root)
    return root


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        ("pass", None),
        ("improved", None),
        ("new", None),
        ("regressed", "failure"),
        ("inconclusive", "skipped"),
        ("missing", "error"),
        ("failed", "error"),
    ],
)
def test_verdicts_as_outcomes(verdict: Any, outcome: str | None) -> None:
    (case,) = parsed(result(comparison(), comparison(verdict=verdict, metric="other"))).findall("*/testcase[2]")
    assert [child.tag for child in case if child.tag != "system-out"] == ([outcome] if outcome else [])


def test_the_policy_says_what_inconclusive_is() -> None:
    root = parsed(result(comparison(verdict="inconclusive"), policy=Policy(inconclusive="failure")))
    assert root.get("failures") == "1"


def test_what_is_waived_is_skipped_with_the_reason() -> None:
    root = parsed(result(regressed(waiver="known (until 2027-01-31)")))
    assert "waived: known (until 2027-01-31)" in root.findall(".//skipped")[0].get("message", "")


def test_nothing_compared_and_an_expired_waiver_are_errors() -> None:
    root = parsed(result(errors=["waiver 1 expired"], interrupted=True))
    assert [case.get("name") for case in root.iter("testcase")] == ["policy or data", "comparisons", "measuring"]
    assert root.get("errors") == "3"


def test_cases_are_named_by_all_their_parameters() -> None:
    (case,) = parsed(result(regressed())).iter("testcase")
    assert case.get("classname") == "collectives"
    assert case.get("name") == "latency op=all_gather bytes=1KiB"


def test_hostile_names_are_text() -> None:
    root = parsed(hostile_result())
    assert "<script>" in next(root.iter("testsuite")).get("name", "")
    assert "\x1b" not in render(hostile_result())


@given(st.text(max_size=40))
def test_any_name_gives_a_document(text: str) -> None:
    parsed(result(regressed(suite=text, metric=text, params={text: text}, message=text), errors=[text]))
