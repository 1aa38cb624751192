"""Plans: each kind of data gets its kind of stream; a plan is kept while it fits, and not when it drifted."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.exponents.rans.plan import COUNT_ALL, Kind, Plan, make_plan, still_fits
from ciera_piper_core.exponents.rans.reference import ReferencePrimitives
from tests.ciera_piper_core.exponents.rans.symbol_samples import symbols_of_kind

PRIMITIVES = ReferencePrimitives()
N = 50_000


def plan_of(symbols: torch.Tensor, any_symbol: bool = False) -> Plan:
    return make_plan(PRIMITIVES, symbols.numpy(), 8, any_symbol)


def fits(plan: Plan, symbols: torch.Tensor) -> bool:
    return still_fits(PRIMITIVES, plan, symbols.numpy(), 8)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("normal", Kind.RANS),
        ("two", Kind.RANS),
        ("flat", Kind.RANS),
        ("wide", Kind.RANS),
        ("random", Kind.RAW),
        ("differences", Kind.SPARSE),
        ("rare_differences", Kind.SPARSE),
        ("rare_first", Kind.SPARSE),
    ],
)
def test_kinds(kind: str, expected: Kind) -> None:
    assert plan_of(symbols_of_kind(kind, N)).kind is expected


def test_the_usual_symbol_is_the_most_frequent() -> None:
    assert plan_of(symbols_of_kind("rare_differences", N)).usual == 9


def test_long_streams_are_counted_in_pieces_all_over() -> None:
    """Symbols that occur only in the second half, or only at the end, must be seen."""
    symbols = torch.zeros(4 * COUNT_ALL, dtype=torch.uint8)
    symbols[2 * COUNT_ALL :] = 1
    symbols[3 * COUNT_ALL :] = 2
    plan = plan_of(symbols)
    assert sorted(plan.table[1::2]) == [0, 1, 2]
    assert max(plan.table[2::2]) - 32 <= 1


def test_a_plan_fits_other_symbols_of_its_kind() -> None:
    for kind in ("normal", "flat", "two", "differences", "random"):
        plan = plan_of(symbols_of_kind(kind, N, seed=1))
        assert all(fits(plan, symbols_of_kind(kind, n, seed=2)) for n in (3000, N, 8 * N)), kind


def test_a_plan_that_drifted_does_not_fit() -> None:
    normal = symbols_of_kind("normal", N)
    plan = plan_of(normal)
    assert not fits(plan, normal - 1)
    assert not fits(plan, symbols_of_kind("random", N))
    assert not fits(plan, symbols_of_kind("differences", N))
    assert not fits(plan_of(symbols_of_kind("random", N)), normal)
    assert not fits(plan_of(symbols_of_kind("differences", N)), normal)
    assert not fits(plan_of(symbols_of_kind("differences", N)), symbols_of_kind("rare_first", N))


def test_a_little_drift_is_no_reason() -> None:
    normal = symbols_of_kind("normal", N)
    mixed = torch.where(torch.arange(N) % 40 == 0, normal - 1, normal)
    assert fits(plan_of(normal), mixed)


def test_a_table_without_escape_does_not_fit_new_symbols() -> None:
    plan = plan_of(symbols_of_kind("two", N))
    assert not plan.serves_any
    new = symbols_of_kind("two", 4000)
    assert fits(plan, new)
    new[5] = 99
    assert not fits(plan, new)
    assert plan_of(new, any_symbol=True).serves_any


def test_a_plan_that_names_wider_symbols_does_not_fit() -> None:
    for kind in ("normal", "rare_first"):
        plan = plan_of(symbols_of_kind(kind, N) | 64)
        assert not still_fits(PRIMITIVES, plan, symbols_of_kind("five_bits", N).numpy(), 5)
