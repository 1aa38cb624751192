"""A sweep as text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import format_bytes
from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.paper import compare
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.sweep import Sweep, predict_sweep
from ciera_piper_core.simulate.table import SIZES_SHOWN, chosen_sizes, format_size, known_lines, paper_text, sweep_text

FRONTIER = load_machine("frontier")


def test_a_line_has_time_speedups_bottlenecks_and_the_best() -> None:
    sweep = Sweep(FRONTIER, (1, 8, 256), (1 << 20,))
    points = predict_sweep(sweep)
    lines = sweep_text(sweep, points).splitlines()
    (header,) = (line for line in lines if line.split()[:1] == ["GPUs"])
    assert header.split("  ")[-1].strip() == "best"
    line = next(line for line in lines if line.split()[:1] == ["256"])
    assert line.split()[:3] == ["256", "32", "1MiB"]
    of_256 = [point for point in points if point.ranks == 256]
    for point in of_256:
        assert f"{point.speedup:.2f} " in line
    best = max(of_256, key=lambda point: point.speedup or 0)
    assert line.split()[-1] == best.algorithm
    one_node = next(line for line in lines if line.split()[:1] == ["8"])
    assert one_node.count("= flat") == 4
    assert one_node.split()[-1] == "flat"
    alone = next(line for line in lines if line.split()[:1] == ["1"])
    assert alone.endswith("an all-to-all needs at least 2 ranks")


def test_a_long_sweep_is_thinned_and_says_so() -> None:
    sizes = tuple(2**power for power in range(13, 33))
    sweep = Sweep(FRONTIER, (16,), sizes, ("flat",))
    points = predict_sweep(sweep)
    short, whole = sweep_text(sweep, points), sweep_text(sweep, points, every=True)
    assert "6 of 20 sizes; --all shows each" in short
    assert "--all" not in whole
    rows = [[line for line in text.splitlines() if line.split()[:1] == ["16"]] for text in (short, whole)]
    assert [len(each) for each in rows] == [6, 20]


def test_each_kind_of_traffic_has_a_table() -> None:
    sweep = Sweep(FRONTIER, (16,), (1 << 20,), ("flat", "halo_v1"), ("uniform", "hot_rank"))
    text = sweep_text(sweep, predict_sweep(sweep))
    assert text.index("uniform traffic") < text.index("hot_rank traffic")


def test_terms_say_how_they_are_known() -> None:
    text = "\n".join(known_lines(FRONTIER))
    assert text.startswith("measured on this machine: none;")
    for name in FRONTIER.terms.counted:
        assert f"{name}: " in text
    fitted = replace(FRONTIER, terms=FRONTIER.terms.with_value("message_inter_s", 1e-5, Term("measured", "a run")))
    assert known_lines(fitted)[0].startswith("measured on this machine: message_inter_s;")
    sweep = Sweep(fitted, (16,), (1 << 20,), ("flat",))
    assert "how well it fits\nmeasured on this" in sweep_text(sweep, predict_sweep(sweep), notes=["how well it fits"])


@given(st.lists(st.integers(1, 1 << 40), min_size=1, unique=True))
def test_chosen_sizes_keep_the_ends(sizes: list[int]) -> None:
    chosen = chosen_sizes(sizes)
    assert (chosen[0], chosen[-1]) == (sizes[0], sizes[-1])
    assert len(chosen) == len(set(chosen)) == min(len(sizes), SIZES_SHOWN)


@given(st.integers(0, 1 << 39))
def test_sizes_are_written_as_the_harness_does(size: int) -> None:
    assert format_size(size) == format_bytes(size)


def test_the_paper_s_peaks_and_statements_are_beside_ours() -> None:
    beside = compare(FRONTIER)
    text = paper_text(beside)
    for panel in beside.figure8:
        assert panel.difference in text
    assert "8.06, 8.03, 7.92" in text
    assert text.count("(a guess)") == 3
    for each in beside.claims:
        assert each.paper in text


@pytest.mark.parametrize("size", [1 << 16, (1 << 20) + 1])
def test_format_size(size: int) -> None:
    assert format_size(size) == {1 << 16: "64KiB", (1 << 20) + 1: "1.00MiB"}[size]
