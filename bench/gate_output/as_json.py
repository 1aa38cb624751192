"""The gate's result as one JSON object with a versioned schema, for programs."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bench.gate_result import Comparison

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.gate_result import GateResult

SCHEMA_VERSION = 1
"""Bumped when a field changes its meaning or goes; fields may be added without."""


def to_dict(result: GateResult) -> dict[str, Any]:
    """The result as plain data: no NaN, no infinity (they become null), no half surrogate pair."""
    found: dict[str, Any] = plain(
        {
            "schema_version": SCHEMA_VERSION,
            "verdict": result.verdict,
            "exit_code": result.exit_code,
            "headline": result.headline,
            "baseline": {"label": result.baseline, "runs": list(result.baseline_runs)},
            "candidate": {"label": result.candidate, "runs": list(result.candidate_runs)},
            "policy": {
                "source": result.policy.source,
                "significance": result.policy.significance,
                "confirmation": result.policy.confirmation,
            },
            "compared": result.compared,
            "counts": dict(result.counts),
            "waived": result.waived,
            "not_judged": result.not_judged,
            "skipped": result.skipped,
            "interrupted": result.interrupted,
            "notes": list(result.notes),
            "errors": list(result.errors),
            "comparisons": [
                {field.name: getattr(comparison, field.name) for field in fields(Comparison)}
                for comparison in result.comparisons
            ],
        }
    )
    return found


def render(result: GateResult) -> str:
    """The object as one line of JSON, with a newline."""
    return json.dumps(to_dict(result), allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Plain JSON data: what is not finite becomes null, half surrogate pairs question marks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "items"):
        mapping: Mapping[Any, Any] = value
        return {plain(str(name)): plain(item) for name, item in mapping.items()}
    return value
