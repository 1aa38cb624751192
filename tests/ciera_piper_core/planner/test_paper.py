"""Published figures: true units of Table IV, sizes of Fig 14, the conclusion of Fig 10, dense models."""

from __future__ import annotations

import pytest

from ciera_piper_core.planner.paper import (
    figure10_bytes,
    fitting_cases,
    migration_rows,
    paper_record,
    paper_text,
    published,
    scaling_rows,
)
from ciera_piper_core.planner.paper_dense import dense_rows


def test_table_4_has_true_bytes_and_says_in_which_unit_it_was_printed() -> None:
    rows = {row.model: row for row in migration_rows()}
    assert {model: (row.unit, row.exact) for model, row in rows.items()} == {
        "switch-base-128": ("GB", True),
        "mixtral-8x7b": ("GiB", True),
        "mixtral-8x22b": ("GiB", True),
        "grok-1": ("GiB", True),
        "glam-1.2t": ("GB", False),
        "deepseek-v2": ("GiB", False),
        "deepseek-v3": ("GiB", True),
    }
    assert [round(row.gb, 3) for row in rows.values()] == [1.208, 2.819, 4.832, 9.664, 103.079, 7.55, 22.549]
    assert all(abs(row.deviation) < 0.003 for row in rows.values())
    # The printed times follow from the printed sizes, so they are as wrong as the unit.
    assert all(row.printed_milliseconds == pytest.approx(row.printed * 20, rel=1e-3) for row in rows.values())
    assert rows["deepseek-v3"].milliseconds == pytest.approx(450.97, rel=1e-4)


def test_figure_14_sizes_to_the_printed_digit() -> None:
    rows = scaling_rows()
    assert [round(row.billion, 1) for row in rows] == [110.7, 218.1, 432.9, 862.3, 1721.3]
    assert [row.gpus for row in rows if not row.agrees] == [128]


def test_figure_10s_conclusion_depends_on_what_it_leaves_open() -> None:
    cases = {(case.matrices, case.unit): case for case in fitting_cases()}
    assert {key: case.smallest_nodes for key, case in cases.items()} == {
        (2, "GB"): 32,
        (2, "GiB"): 32,
        (3, "GB"): 64,
        (3, "GiB"): 32,
    }
    assert [key for key, case in cases.items() if case.agrees] == [(3, "GB")]
    assert cases[3, "GB"].least_bytes[32] == pytest.approx(67.5e9, rel=1e-3)
    assert 64e9 < cases[3, "GB"].least_bytes[32] < 64 * 2**30


def test_figure_10s_rule_is_the_papers() -> None:
    # X-MoE Super on 512 GPUs with EP 64, PP 8: 43.0 GB of state and 7.5 GB of activations.
    assert figure10_bytes(2, 512, 64) == pytest.approx(50.5e9, rel=2e-3)


def test_dense_models_have_the_published_memory_and_nearly_the_published_times() -> None:
    rows = dense_rows(published()["dense"])
    assert len(rows) == 20
    for row in rows:
        if "GiB" in row.quantity:
            assert row.deviation == pytest.approx(0, abs=2e-4), row
        else:
            assert abs(row.deviation) < 0.17, row
    times = [abs(row.deviation) for row in rows if row.quantity.startswith("step")]
    assert sum(times) / len(times) < 0.1


def test_everything_is_printed() -> None:
    text, record = paper_text(), paper_record()
    for part in ("Table IV", "Fig 14", "Fig 10", "Korthikanti", "GiB", "misprint"):
        assert part in text
    assert {name: len(rows) for name, rows in record.items()} == {
        "table4": 7,
        "figure14": 5,
        "figure10": 4,
        "dense": 20,
    }
