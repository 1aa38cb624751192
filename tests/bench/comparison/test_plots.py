"""Plots of a comparison: lengths, gaps, and that every value is within the picture."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from bench.comparison.plots import CURVE_HEIGHT, LABEL, WIDTH, Bar, bars, curves, part_class, stacked


def shapes(text: str, kind: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter(kind))


def test_bars_are_as_long_as_their_values() -> None:
    found = bars([Bar("a", 2.0, 1.5, 2.5, "2 s", "a: 2 s"), Bar("b", 1.0, 0.9, 1.1, "1 s", "b: 1 s")], "times")
    widths = [float(bar.attrib["width"]) for bar in shapes(found, "rect")]
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-3)
    whiskers = [line for line in shapes(found, "line") if line.attrib["y1"] == line.attrib["y2"]]
    ends = [(float(line.attrib["x1"]) - LABEL, float(line.attrib["x2"]) - LABEL) for line in whiskers]
    assert ends[0] == pytest.approx((widths[0] * 0.75, widths[0] * 1.25), abs=0.2)
    assert [title.text for title in shapes(found, "title")] == ["a: 2 s", "b: 1 s"]


def test_stacked_parts_lie_one_after_the_other() -> None:
    found = stacked({"a": {"x": 1.0, "y": 3.0}, "b": {"y": 2.0}}, ["x", "y"], "parts", lambda value: f"{value:g} s")
    first, second, other = shapes(found, "rect")
    assert float(first.attrib["x"]) == LABEL
    assert float(second.attrib["x"]) == pytest.approx(LABEL + float(first.attrib["width"]), abs=0.02)
    assert float(second.attrib["width"]) == pytest.approx(3 * float(first.attrib["width"]), abs=0.05)
    # A part has its colour on every side.
    assert second.attrib["class"] == other.attrib["class"] != first.attrib["class"]
    assert "a, y: 3 s, 75.0%" in found


def test_more_parts_than_colours_are_still_told_apart() -> None:
    assert len({part_class(place) for place in range(20)}) == 20


@pytest.mark.parametrize("logarithmic", [False, True])
def test_curves_stay_within_the_picture(logarithmic: bool) -> None:
    found = curves({"a": [3.0, 2.0, 1e-9, 1.0], "b": [5.0]}, "nats", "loss", logarithmic)
    for path in shapes(found, "path"):
        numbers = [float(text) for text in re.findall(r"-?[\d.]+", path.attrib["d"])]
        assert all(0 <= x <= WIDTH for x in numbers[::2])
        assert all(0 <= y <= CURVE_HEIGHT for y in numbers[1::2])


def test_what_is_no_number_leaves_a_gap() -> None:
    (path,) = shapes(curves({"a": [1.0, 2.0, math.nan, 1.0, 2.0]}, "nats", "loss"), "path")
    assert path.attrib["d"].count("M") == 2
    (path,) = shapes(curves({"a": [1.0, 0.0, 1.0, 2.0]}, "", "difference", logarithmic=True), "path")
    assert path.attrib["d"].count("M") == 2


def test_nothing_to_plot_is_said() -> None:
    assert "Nothing to plot" in curves({"a": [0.0, math.inf]}, "", "difference", logarithmic=True)


def test_a_constant_series_is_a_flat_line() -> None:
    (path,) = shapes(curves({"a": [2.0, 2.0, 2.0]}, "nats", "loss"), "path")
    heights = re.findall(r"[\d.]+ ([\d.]+)", path.attrib["d"])
    assert len(set(heights)) == 1
