"""Frequency tables: logarithms are exact enough, slots go where they save most, wrong tables are refused."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.rans.tables import COST_BITS, SLOTS, Table, build_table, cost, log2_fixed, parse_table


def counts_of(counted: dict[int, int]) -> list[int]:
    return [counted.get(symbol, 0) for symbol in range(256)]


def entropy_bits(counts: list[int]) -> float:
    total = sum(counts)
    return sum(count * math.log2(total / count) for count in counts if count)


def cost_bits(counts: list[int], table: Table) -> float:
    found = cost(counts, table)
    assert found is not None
    return found / 2**COST_BITS


@given(st.integers(1, 2**63))
def test_logarithms_are_right_to_their_last_bits(value: int) -> None:
    assert 0 <= math.log2(value) - log2_fixed(value) / 2**COST_BITS < 2 / 2**COST_BITS


def test_logarithms_of_powers_of_two_are_exact_and_none_falls() -> None:
    assert [log2_fixed(2**bit) for bit in range(64)] == [bit << COST_BITS for bit in range(64)]
    assert all(a <= b for a, b in pairwise(map(log2_fixed, range(1, 5000))))


def test_entries_are_the_frequent_symbols_and_the_rest_escapes() -> None:
    table = build_table(counts_of({7: 600, 9: 300, 200: 93, 3: 7}), any_symbol=False)
    assert table is not None
    assert table.symbols == (7, 9, 200)
    assert table.shares == (38, 19, 6)
    assert table.escape_share == 1


def test_equal_counts_go_by_the_symbol() -> None:
    table = build_table([1] * 64 + [0] * 192, any_symbol=False)
    assert table is not None
    assert table.symbols == tuple(range(15))
    assert table.escape_share == SLOTS - 15


def test_a_table_without_escape_only_for_symbols_that_are_all_known() -> None:
    counts = counts_of({0: 50, 1: 50})
    closed, open_ = build_table(counts, any_symbol=False), build_table(counts, any_symbol=True)
    assert closed is not None
    assert open_ is not None
    assert closed.shares == (32, 32)
    assert cost(counts_of({0: 5, 2: 1}), closed) is None
    assert sum(open_.shares) == SLOTS - open_.escape_share < SLOTS
    assert cost(counts_of({0: 5, 2: 1}), open_) is not None


def test_no_table_where_nothing_is_frequent_or_all_is_the_same() -> None:
    assert build_table([1] * 256, any_symbol=False) is None
    assert build_table(counts_of({4: 9}), any_symbol=False) is None
    assert build_table(counts_of({4: 9}), any_symbol=True) == Table((4,), (63,))
    assert build_table([0] * 256, any_symbol=True) is None


@settings(deadline=None)
@given(st.lists(st.floats(-4, 4), min_size=2, max_size=60), st.integers(0, 5))
def test_tables_cost_little_over_entropy(logs: list[float], seed: int) -> None:
    """For any shares of symbols, up to e**8 apart: a flat alphabet of some 50 symbols is the worst."""
    counts = [0] * 256
    for place, log in enumerate(logs):
        counts[place * 4 + seed % 4] = int(1000 * math.exp(log))
    table = build_table(counts, any_symbol=False)
    assert table is not None
    if max(counts) * 16 < sum(counts) * 15:
        assert cost_bits(counts, table) <= 1.02 * entropy_bits(counts) + 0.02 * sum(counts)


def test_exponents_of_normal_weights_cost_a_fifth_of_a_percent_over_entropy() -> None:
    edges = [2.0**power for power in range(-30, 4)]
    shares = [math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2)) for a, b in pairwise([0.0, *edges])]
    counts = [*(int(share * 10**9) for share in shares), *[0] * (256 - len(shares))]
    table = build_table(counts, any_symbol=True)
    assert table is not None
    assert cost_bits(counts, table) <= 1.0025 * entropy_bits(counts)


def test_bytes_and_back() -> None:
    table = Table((5, 0, 255), (40, 20, 1))
    assert table.to_bytes() == bytes([3, 5, 40, 0, 20, 255, 1])
    assert parse_table(table.to_bytes() + b"more", 8) == table


@pytest.mark.parametrize(
    "coded",
    [
        b"",
        bytes([0]),
        bytes([1, 7]),
        bytes([16, *[1] * 32]),
        bytes([2, 7, 3, 7, 4]),
        bytes([1, 7, 0]),
        bytes([1, 7, 64]),
        bytes([2, 7, 60, 8, 5]),
        bytes([1, 32, 8]),
    ],
    ids=["empty", "none", "cut", "many", "twice", "no slot", "all slots", "too many slots", "too wide"],
)
def test_wrong_tables_are_refused(coded: bytes) -> None:
    with pytest.raises(CodedDataError):
        parse_table(coded, 5)
