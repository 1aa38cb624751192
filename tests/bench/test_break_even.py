"""Break-even between grouped and looped expert GEMM."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.break_even import break_even_points
from bench.platform_profile import RowRef, TableRow

TOKENS = [256, 1024, 4096, 16384]


def table_row(method: str, tokens: int, tflop_s: float, settled: bool = True, **params: Any) -> TableRow:
    return TableRow(
        params={"model": "mixtral", "method": method, "tokens": tokens, **params},
        values={"throughput": tflop_s},
        n=10,
        settled=settled,
        row=RowRef(run_id="r", row_id=0),
    )


def table(ratios: list[float], **params: Any) -> list[TableRow]:
    """Looped always reaches 1 TFLOP/s, grouped the ratios."""
    pairs = zip(TOKENS, ratios, strict=True)
    return [
        row
        for tokens, ratio in pairs
        for row in (table_row("grouped", tokens, ratio, **params), table_row("looped", tokens, 1.0, **params))
    ]


def test_single_crossing_is_interpolated_in_log_tokens() -> None:
    (found,) = break_even_points(table([0.25, 0.5, 2.0, 4.0]))
    assert found.outcome == "crossing"
    assert found.tokens == pytest.approx(2048)
    assert [(c.tokens, c.faster_above) for c in found.crossings] == [(pytest.approx(2048), "grouped")]
    assert (found.min_tokens, found.max_tokens, found.compared_points) == (256, 16384, 4)
    assert found.params == {"model": "mixtral"}


@pytest.mark.parametrize(
    ("ratios", "outcome", "crossings"),
    [
        ([1.1, 1.2, 1.3, 1.4], "grouped always", []),
        ([1.0, 1.0, 1.0, 1.0], "grouped always", []),
        ([0.9, 0.8, 0.7, 0.6], "looped always", []),
        ([2.0, 2.0, 0.5, 0.5], "reverse crossing", ["looped"]),
        ([0.5, 2.0, 0.5, 2.0], "several crossings", ["grouped", "looped", "grouped"]),
        ([2.0, 0.5, 0.5, 2.0], "several crossings", ["looped", "grouped"]),
        ([0.5, 0.8, 1.0, 1.5], "crossing", ["grouped"]),
    ],
)
def test_outcomes(ratios: list[float], outcome: str, crossings: list[str]) -> None:
    (found,) = break_even_points(table(ratios))
    assert found.outcome == outcome
    assert [crossing.faster_above for crossing in found.crossings] == crossings
    assert (found.tokens is None) == (outcome != "crossing")


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
def test_crossings_lie_between_the_points_that_disagree(ratios: list[float]) -> None:
    (found,) = break_even_points(table(ratios))
    gaps = [
        (low, high) for low, high in zip(range(3), range(1, 4), strict=True) if (ratios[low] < 1) != (ratios[high] < 1)
    ]
    assert len(found.crossings) == len(gaps)
    for crossing, (low, high) in zip(found.crossings, gaps, strict=True):
        assert TOKENS[low] * (1 - 1e-9) <= crossing.tokens <= TOKENS[high] * (1 + 1e-9)


def test_only_token_counts_with_both_are_compared() -> None:
    rows = [*table([0.5, 0.5, 2.0, 2.0]), table_row("grouped", 65536, 0.1)]
    (found,) = break_even_points(rows)
    assert (found.outcome, found.max_tokens) == ("crossing", 16384)


def test_other_parameters_are_kept_apart() -> None:
    rows = table([0.5, 0.5, 2.0, 2.0], dtype="float32") + table([2.0, 2.0, 2.0, 2.0], dtype="bfloat16")
    assert {found.params["dtype"]: found.outcome for found in break_even_points(rows)} == {
        "float32": "crossing",
        "bfloat16": "grouped always",
    }


def test_one_method_alone_gives_no_break_even() -> None:
    assert break_even_points([table_row("grouped", tokens, 1.0) for tokens in TOKENS]) == ()


def test_unsettled_points_are_told() -> None:
    rows = [*table([0.5, 0.5, 2.0, 2.0])[:-1], table_row("looped", TOKENS[-1], 1.0, settled=False)]
    assert not break_even_points(rows)[0].settled
