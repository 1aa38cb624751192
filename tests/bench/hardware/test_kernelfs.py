"""Small kernel files: numbers, lists, and whatever else may be in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.hardware.kernelfs import link_name, list_dir, natural_key, parse_cpu_list, read_int, read_table, read_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2100000", 2100000),
        ("-1\n", -1),
        ("48K", 48),
        ("400 Gb/sec (4X NDR)", 400),
        ("max", None),
        ("", None),
        ("-", None),
    ],
)
def test_read_int_takes_the_number_in_front(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "file").write_text(text)
    assert read_int(tmp_path / "file") == expected


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe 1")
    assert read_text(tmp_path / "absent") is None
    assert read_text(tmp_path) is None
    assert read_text(tmp_path / "nul\0name") is None
    assert read_text(tmp_path / "binary") == "\ufffd\ufffd 1"
    assert list_dir(tmp_path / "absent") == []
    assert link_name(tmp_path / "absent") is None


def test_read_table_keeps_the_first_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a : 1\nno separator\nb:2:3\na: 4\n")
    assert read_table(tmp_path / "file") == {"a": "1", "b": "2:3"}


def test_numbers_in_names_sort_as_numbers() -> None:
    names = ["mlx5_10", "mlx5_2", "eth0", "mlx5_9", "9", "10"]
    assert sorted(names, key=natural_key) == ["9", "10", "eth0", "mlx5_2", "mlx5_9", "mlx5_10"]


@given(st.lists(st.text(), max_size=5))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    assert len(sorted(names, key=natural_key)) == len(names)


@given(st.frozensets(st.integers(0, 500), min_size=1))
def test_cpu_list_reads_what_the_kernel_writes(cpus: frozenset[int]) -> None:
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    text = ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", [None, "", "all", "0-", "-3", "1,,2", "3-1x"])
def test_cpu_list_of_nonsense_is_empty(text: str | None) -> None:
    assert parse_cpu_list(text) == frozenset()
