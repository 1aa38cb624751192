"""What ``bench list`` says of the suites: parameters, presets, metrics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bench.errors import UsageError
from bench.registry import load_suite, suite_names
from bench.suite import PRESETS

if TYPE_CHECKING:
    from bench.suite import Suite


def describe_suites() -> list[dict[str, Any]]:
    """One record a suite: name, summary, whether it takes ranks, number of cases by preset.

    A suite that cannot be loaded is said on standard error, and hides no other.
    """
    suites = []
    for name in suite_names():
        try:
            suites.append(load_suite(name))
        except UsageError as error:
            print(f"bench: {error}", file=sys.stderr)
    return [_overview(suite) for suite in suites]


def describe_suite(name: str) -> dict[str, Any]:
    """Everything about one suite.

    Raises:
        UsageError: no such suite.
    """
    suite = load_suite(name)
    return {
        **_overview(suite),
        "parameters": [
            {
                "name": axis.name,
                "kind": axis.kind,
                "help": axis.help,
                "choices": list(axis.choices),
                "presets": {preset: list(suite.presets[preset][axis.name]) for preset in PRESETS},
            }
            for axis in suite.axes
        ],
        "metrics": [
            {
                "name": metric.key,
                "unit": metric.unit,
                "better": metric.better,
                "definition": metric.definition.id,
                "text": metric.definition.text,
            }
            for metric in suite.metrics
        ],
    }


def _overview(suite: Suite) -> dict[str, Any]:
    return {
        "name": suite.name,
        "summary": suite.summary,
        "method_version": suite.method_version,
        "distributed": suite.distributed,
        "cases": {preset: sum(1 for _ in suite.cases(preset, {})) for preset in PRESETS},
    }


def print_suites(overview: list[dict[str, Any]]) -> None:
    """The overview as a table on standard output."""
    from tabulate import tabulate

    rows = [
        [
            suite["name"],
            "many" if suite["distributed"] else "one",
            *(suite["cases"][preset] for preset in PRESETS),
            suite["summary"],
        ]
        for suite in overview
    ]
    print(tabulate(rows, ["suite", "ranks", *PRESETS, "what it measures"], tablefmt="simple"))
    print("\nquick, standard, full: number of cases. `bench list SUITE` shows its parameters.")


def print_suite(details: dict[str, Any]) -> None:
    """One suite's details on standard output."""
    from tabulate import tabulate

    suite = load_suite(details["name"])
    print(f"{details['name']} (method version {details['method_version']}): {details['summary']}\n")
    rows = [
        [
            parameter["name"],
            *(
                ", ".join(suite.axis(parameter["name"]).format(value) for value in parameter["presets"][preset])
                for preset in PRESETS
            ),
            parameter["help"],
        ]
        for parameter in details["parameters"]
    ]
    widths = [None, 24, 24, 24, 44]
    print(tabulate(rows, ["parameter", *PRESETS, "meaning"], tablefmt="simple", maxcolwidths=widths))
    print()
    widths = [36, None, None, None, 70]
    metrics = _metrics_by_definition(details["metrics"])
    print(tabulate(metrics, ["metric", "unit", "better", "definition", "meaning"], maxcolwidths=widths))


def _metrics_by_definition(metrics: list[dict[str, Any]]) -> list[list[str]]:
    """A line for all metrics that differ in the value of one parameter alone: ``time[part=loss, codec]``."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for metric in metrics:
        name, bracket, value = metric["name"].partition("=")
        same = (name + bracket, metric["unit"], metric["better"], metric["definition"], metric["text"])
        lines.setdefault(same, []).append(value.removesuffix("]"))
    return [[f"{name}{', '.join(values)}]" if "=" in name else name, *rest] for (name, *rest), values in lines.items()]
