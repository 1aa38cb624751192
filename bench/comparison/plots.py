"""Plots of a comparison as SVG, without scripts: bars with whiskers, curves, stacked bars."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.report.formatting import number
from bench.report.markup import Markup, element

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HUES = 7
"""Colours of the report's style sheet; further curves and parts begin again with another pattern."""
WIDTH = 760
LABEL = 150
BAR, GAP = 22, 12
CURVE_HEIGHT = 260
DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Bar:
    """A bar with a whisker.

    Attributes:
        label: at its left. value, low, high: its length, and the ends of the whisker.
        text: at its right. title: what a pointer shows.
    """

    label: str
    value: float
    low: float
    high: float
    text: str
    title: str


def bars(found: Sequence[Bar], label: str) -> Markup:
    """Horizontal bars from zero."""
    most = max((max(bar.high, bar.value) for bar in found), default=1.0) or 1.0
    room = WIDTH - LABEL - 130
    shapes = []
    for place, bar in enumerate(found):
        top = GAP + place * (BAR + GAP)
        middle = top + BAR / 2
        ends = [LABEL + room * value / most for value in (bar.value, bar.low, bar.high)]
        shapes += [
            _text(LABEL - 10, middle, bar.label, "end"),
            element(
                "rect",
                element("title", bar.title),
                class_=f"fill-{place % HUES}",
                x=str(LABEL),
                y=f"{top:.1f}",
                width=f"{max(1.0, ends[0] - LABEL):.1f}",
                height=str(BAR),
                rx="3",
            ),
            _line(ends[1], middle, ends[2], middle, "whisker"),
            *(_line(end, middle - 5, end, middle + 5, "whisker") for end in ends[1:]),
            _text(max(ends) + 8, middle, bar.text, "start"),
        ]
    return _svg(shapes, GAP + len(found) * (BAR + GAP), label)


def stacked(
    found: Mapping[str, Mapping[str, float]], parts: Sequence[str], label: str, write: Callable[[float], str]
) -> Markup:
    """A bar a name, of parts one after the other.

    Args:
        found: by name, the size of each part. parts: their order, which also gives their colours.
        write: a size as text.
    """
    most = max((sum(sizes.values()) for sizes in found.values()), default=1.0) or 1.0
    room = WIDTH - LABEL - 90
    shapes = []
    for place, (name, sizes) in enumerate(found.items()):
        top, reached, whole = GAP + place * (BAR + GAP), float(LABEL), sum(sizes.values())
        shapes.append(_text(LABEL - 10, top + BAR / 2, name, "end"))
        for part in parts:
            width = room * max(0.0, sizes.get(part, 0.0)) / most
            if width > 0:
                title = element("title", f"{name}, {part}: {write(sizes[part])}, {sizes[part] / whole:.1%}")
                shapes.append(
                    element(
                        "rect",
                        title,
                        class_=part_class(parts.index(part)),
                        x=f"{reached:.2f}",
                        y=f"{top:.1f}",
                        width=f"{width:.2f}",
                        height=str(BAR),
                    )
                )
            reached += width
        shapes.append(_text(reached + 8, top + BAR / 2, write(whole), "start"))
    return _svg(shapes, GAP + len(found) * (BAR + GAP), label)


def part_class(place: int) -> str:
    """The class of the part at a place: a colour, and from the eighth on with less of it."""
    return f"fill-{place % HUES}" + (f" again-{place // HUES}" if place >= HUES else "")


def curves(
    found: Mapping[str, Sequence[float]], axis: str, label: str, logarithmic: bool = False, across: str = "iteration"
) -> Markup:
    """A line a name over the iterations; values that are not finite, and on logarithms zeros, leave gaps."""
    values = [value for series in found.values() for value in series if _shown(value, logarithmic)]
    if not values:
        return element("p", "Nothing to plot.", class_="quiet")
    low, high = _range(values, logarithmic)
    longest = max(len(series) for series in found.values())
    left, right, top, bottom = 64.0, WIDTH - 16.0, 14.0, CURVE_HEIGHT - 40.0

    def x(place: int) -> float:
        return left + (right - left) * (place / (longest - 1) if longest > 1 else 0.5)

    def y(value: float) -> float:
        scaled = math.log10(value) if logarithmic else value
        return bottom - (bottom - top) * (scaled - low) / (high - low)

    shapes = []
    for tick in _ticks(low, high, logarithmic):
        value = 10**tick if logarithmic else tick
        shapes += [
            _line(left, y(value), right, y(value), "grid"),
            _text(left - 8, y(value), number(value), "end", "tick"),
        ]
    for place in sorted({0, longest // 2, longest - 1}):
        shapes.append(_text(x(place), bottom + 16, str(place + 1), "middle", "tick"))
    shapes += [
        _text((left + right) / 2, CURVE_HEIGHT - 6, across, "middle", "tick"),
        _text(left, 6, axis, "start", "tick"),
    ]
    for place, (name, series) in enumerate(found.items()):
        steps, pen = [], "M"
        for at, value in enumerate(series):
            if _shown(value, logarithmic):
                steps.append(f"{pen}{x(at):.1f} {y(value):.1f}")
                pen = "L"
            else:
                pen = "M"
        if len(steps) == 1:
            steps.append("h1")
        shapes.append(
            element(
                "path",
                element("title", name),
                d=" ".join(steps),
                class_=f"curve line-{place % HUES}",
                stroke_dasharray=dash(place) or None,
                # Earlier curves are wider, so that those that lie on each other are all seen.
                stroke_width=f"{max(1.5, 5 - 1.2 * place):.1f}",
            )
        )
    return _svg(shapes, CURVE_HEIGHT, label)


def dash(place: int) -> str:
    """The dashes of the curve at a place."""
    return DASHES[place % len(DASHES)]


def _shown(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _range(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    scaled = [math.log10(value) for value in values] if logarithmic else list(values)
    low, high = min(scaled), max(scaled)
    if logarithmic:
        low, high = math.floor(low), math.ceil(high)
    pad = 0.0 if logarithmic else 0.05 * (high - low)
    return (low - pad, high + pad) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    step = (high - low) / 4
    power = 10 ** math.floor(math.log10(step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)
    if logarithmic:
        step = max(1.0, round(step))
    first = math.ceil(low / step)
    return [place * step for place in range(first, math.floor(high / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return element("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=kind)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "name") -> Markup:
    return element(
        "text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, dominant_baseline="central", class_=kind
    )


def _svg(shapes: Sequence[Markup], height: float, label: str) -> Markup:
    return element(
        "svg", *shapes, class_="comparison-plot", viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=label
    )
