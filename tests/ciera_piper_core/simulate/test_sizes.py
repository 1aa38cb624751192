"""Numbers of GPUs and sizes as people type them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import parse_bytes
from ciera_piper_core.simulate.sizes import FACTORS, MOST_BYTES, parse_gpus, parse_size, parse_sizes

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", (8,)),
        ("2:4096", tuple(2**power for power in range(1, 13))),
        ("2:12", (2, 4, 8, 12)),
        ("16, 3,2:8", (2, 3, 4, 8, 16)),
        ("4,4", (4,)),
    ],
)
def test_gpus(text: str, expected: tuple[int, ...]) -> None:
    assert parse_gpus(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0", "0:8", "8:2", "-2", "2:", ":8", "2:4:8", "two", "1e3", "٣", "9" * 400, "2:9999999"]
)
def test_gpus_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--gpus takes numbers from 1") as caught:
        parse_gpus(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", (4096,)),
        ("1KiB:8KiB", (1024, 2048, 4096, 8192)),
        ("1kib:3KiB", (1024, 2048, 3072)),
        ("1MB,1MiB", (10**6, 2**20)),
        ("1.5MiB", (3 << 19,)),
        ("64 KiB", (65536,)),
    ],
)
def test_sizes(text: str, expected: tuple[int, ...]) -> None:
    assert parse_sizes(text) == expected


def test_the_issue_s_range() -> None:
    sizes = parse_sizes("64KiB:4GiB")
    assert (sizes[0], sizes[-1], len(sizes)) == (1 << 16, 1 << 32, 17)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1M", "ambiguous; write MiB"),
        ("64KiB:4G", "ambiguous; write GiB"),
        ("", "no size"),
        ("-4", "no size"),
        ("1.3B", "no whole number"),
        ("0", "no whole number of bytes from 1"),
        ("2000TiB", "from 1 to 1 PiB"),
        ("4MiB:1MiB", "no range"),
        ("1:2:3", "no range"),
        ("1XiB", "no size"),
        ("9" * 300, "no size"),
    ],
)
def test_sizes_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_sizes(text)
    assert str(caught.value).startswith("--bytes: ")
    assert len(str(caught.value)) < 250


@given(st.integers(1, 1 << 40), st.sampled_from(sorted(FACTORS)))
def test_sizes_mean_what_the_harness_means(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    if number * FACTORS[unit] <= MOST_BYTES:
        assert parse_size(text) == parse_bytes(text) == number * FACTORS[unit]


@given(st.text(alphabet="0123456789:,. kKmMgGiIbB-", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_sizes, parse_gpus):
        values = read_or_refused(parse, text)
        assert values == tuple(sorted(set(values)))
        assert min(values, default=1) >= 1


def read_or_refused(parse: Callable[[str], tuple[int, ...]], text: str) -> tuple[int, ...]:
    """The values; none where the text is refused, which a ``ValueError`` alone may do."""
    try:
        return parse(text)
    except ValueError:
        return ()
