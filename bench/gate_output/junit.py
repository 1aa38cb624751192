"""The gate's result as JUnit XML: a test case for each metric of each case, which CI systems show by themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from bench.gate_output.text import case_name, change_text, change_title, threshold_text, value_text, visible, why

if TYPE_CHECKING:
    from bench.gate_result import Comparison, GateResult

KINDS = ("failure", "error", "skipped")


def render(result: GateResult) -> str:
    """The result as an XML document: a test suite for each of the gate's suites.

    Regressed is a failure, failed and missing are errors, inconclusive is as the policy says, and what
    is waived is skipped. A gate that compared nothing has a suite of its own with an error, and so has
    each error of policy or data.
    """
    root = ElementTree.Element("testsuites", name="bench gate")
    suites: dict[str, list[Comparison]] = {}
    for comparison in result.comparisons:
        suites.setdefault(comparison.suite, []).append(comparison)
    for name, comparisons in suites.items():
        element = _suite(root, name, result)
        for comparison in comparisons:
            case = _case(element, comparison.suite, f"{comparison.metric} {case_name(comparison)}")
            _outcome(case, comparison, result)
            ElementTree.SubElement(case, "system-out").text = _details(comparison)
    troubles = [("policy or data", error) for error in result.errors]
    if not result.compared:
        troubles.append(("comparisons", "nothing was compared; the gate cannot say whether anything changed"))
    if result.interrupted:
        troubles.append(("measuring", "the measuring was interrupted; what was measured is judged"))
    if troubles:
        element = _suite(root, "bench gate", result)
        for name, message in troubles:
            case = _case(element, "bench gate", name)
            ElementTree.SubElement(case, "error", message=visible(message), type="gate")
    for element in root:
        _count(element)
    for kind, plural in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        root.set(kind, str(len(root.findall(f"./testsuite/{plural}" if plural == "testcase" else f".//{plural}"))))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, name: str, result: GateResult) -> ElementTree.Element:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    suite = ElementTree.SubElement(root, "testsuite", name=visible(name), timestamp=now, hostname="-", time="0")
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"baseline": result.baseline, "candidate": result.candidate, "policy": result.policy.source}
    for key, value in facts.items():
        ElementTree.SubElement(properties, "property", name=key, value=visible(value))
    return suite


def _case(suite: ElementTree.Element, class_name: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=visible(class_name), name=visible(name), time="0")


def _outcome(case: ElementTree.Element, comparison: Comparison, result: GateResult) -> None:
    """What a test case is, if not passed."""
    kind = {"regressed": "failure", "failed": "error", "missing": "error", "inconclusive": result.policy.inconclusive}
    name = "skipped" if comparison.waived else kind.get(comparison.verdict)
    if name is None:
        return
    message = f"{comparison.outcome}: {change_text(comparison)}; {why(comparison)}"
    attributes = {"message": visible(message)}
    if name != "skipped":
        attributes["type"] = comparison.reason_code
    ElementTree.SubElement(case, name, attributes)


def _details(comparison: Comparison) -> str:
    """All that the other outputs have in columns, as lines."""
    facts = {
        "verdict": comparison.outcome,
        "reason": comparison.reason_code,
        "baseline": value_text(comparison.baseline_value, comparison.unit),
        "candidate": value_text(comparison.candidate_value, comparison.unit),
        change_title([comparison]): change_text(comparison),
        "counts from": threshold_text(comparison),
    }
    return "\n".join(f"{name}: {value}" for name, value in facts.items())


def _count(suite: ElementTree.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{kind}"))))
