"""The page of a simulated sweep: speedups and bottlenecks, and the paper's figures beside ours."""

from __future__ import annotations

from html import escape
from string import Template
from typing import TYPE_CHECKING, Any

from ciera_piper_core.page import frame
from ciera_piper_core.planner.formatting import seconds
from ciera_piper_core.simulate import BOTTLENECKS
from ciera_piper_core.simulate.paper import MACHINE, PARITY, compare, published
from ciera_piper_core.simulate.table import format_size, known_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ciera_piper_core.simulate.paper import Comparison
    from ciera_piper_core.simulate.sweep import Point, Sweep

PACKAGE = "ciera_piper_core.simulate"
SECTIONS = (
    ("speedup", "Speedup over flat"),
    ("best", "Best algorithm"),
    ("bottlenecks", "Bottlenecks"),
    ("figure5", "Piper's Fig 5"),
    ("figure8", "Piper's Fig 8"),
    ("claims", "What Piper says"),
    ("points", "All points"),
    ("known", "Measured and assumed"),
)
"""Ids of the page's sections, and their links."""

FIGURE5 = (
    "All-to-all of the library (ours: flat) from 2 to 64 GPUs. The paper's curves have no printed values, so beside"
    " ours stands what its text says: bandwidth drops as soon as nodes are crossed, and the mean inside a node is 50"
    " GB/s (which is where the specification's 50 GB/s a GPU comes from, so that this agrees by construction)."
    " Bandwidth here counts the bytes that leave a GPU; which of two usual definitions the paper has is not said."
)
FIGURE8 = (
    "Speedup of HALO's variants over the library's all-to-all, against the bytes that each GPU sends. The paper prints"
    " the peaks of each panel, without the variant or the size that each belongs to: dashed. Where even the panel is a"
    " guess, its title says so and they are dotted."
)
DIFFERENCES = (
    "Why they differ: our gain over flat comes from named terms (below) that change smoothly with the number of peers,"
    " up to a largest factor, so no prediction has a peak at 32 nodes that falls by half at 64, as the paper's has; the"
    " paper does not give its cause. Where fixed costs of messages are part of the gain, it fades as messages grow."
)


def write_page(path: Path, sweep: Sweep, points: Sequence[Point], notes: Sequence[str] = ()) -> Path:
    """Write the page to ``path``; a reader never sees a part of the file.

    Args:
        notes: lines about the calibration.

    Raises:
        ValueError: the file cannot be written.
    """
    frame.refuse_place(path)
    return frame.write_page(path, render(sweep, points, notes))


def render(sweep: Sweep, points: Sequence[Point], notes: Sequence[str] = ()) -> str:
    """The page as one HTML document; the paper's figures are on it where the machine is the paper's."""
    machine = sweep.machine
    beside = compare(machine) if machine.name == MACHINE else None
    body = Template(frame.asset(PACKAGE, "page.html")).substitute(
        figure5=escape(FIGURE5),
        figure8=escape(f"{FIGURE8} {DIFFERENCES}"),
        claims=escape(f"On par means within {PARITY:.0%}."),
        points=escape(_refused(points)),
        known=frame.items(line.strip() for line in (*notes, *known_lines(machine))),
    )
    return frame.document(
        title=f"All-to-all on {machine.name}, simulated",
        subtitle=[
            machine.network.name,
            f"{_span(sweep.ranks, str)} GPUs, {_span(sweep.sizes, format_size)} a GPU,"
            f" {', '.join(sweep.traffic)} traffic",
        ],
        verdict=_verdict(points, beside),
        sections=SECTIONS,
        body=body,
        data=payload(sweep, points, beside),
        script=frame.asset(PACKAGE, "page.js"),
    )


def payload(sweep: Sweep, points: Sequence[Point], beside: Comparison | None) -> dict[str, Any]:
    """What the page's script draws, as plain values; bytes are bytes, seconds seconds."""
    return {
        "algorithms": list(sweep.algorithms),
        "traffic": list(sweep.traffic),
        "gpus": list(sweep.ranks),
        "sizes": list(sweep.sizes),
        "bottlenecks": list(BOTTLENECKS),
        "points": [_point(point) for point in points],
        "figure5": None if beside is None else _figure5(beside),
        "figure8": None if beside is None else _figure8(beside),
        "claims": None if beside is None else [[claim.paper, claim.ours, claim.agrees] for claim in beside.claims],
    }


def _point(point: Point) -> dict[str, Any]:
    found = point.prediction
    shown: dict[str, Any] = {
        "algorithm": point.algorithm,
        "traffic": point.traffic,
        "gpus": point.ranks,
        "nodes": point.nodes,
        "bytes": point.size,
        "reason": point.reason,
        "seconds": None,
        "speedup": None,
        "bottleneck": None,
    }
    if found is None:
        return shown
    shares = sorted(
        ((name, part / found.seconds) for name, part in found.parts.items() if part), key=lambda each: -each[1]
    )
    return shown | {
        "seconds": found.seconds,
        "speedup": point.speedup,
        "rate": point.largest_bytes / found.seconds,
        "bottleneck": found.bottleneck,
        "parts": [[name, share] for name, share in shares],
        "engine": found.engine,
        "fallback": found.fallback,
    }


def _figure5(beside: Comparison) -> dict[str, Any]:
    return {
        "stated": published()["figure5"]["intra_node_mean_bytes_s"],
        "curves": [
            {"gpus": curve.gpus, "nodes": curve.nodes, "sizes": curve.sizes, "rates": curve.bytes_s}
            for curve in beside.figure5
        ],
    }


def _figure8(beside: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "nodes": panel.nodes,
            "gpus": panel.gpus,
            "paper": panel.paper,
            "certain": panel.certain,
            "sizes": panel.sizes,
            "variants": list(panel.speedups.items()),
            "ratio": panel.ratio,
            "difference": panel.difference,
        }
        for panel in beside.figure8
    ]


def _verdict(points: Sequence[Point], beside: Comparison | None) -> str:
    """The largest speedup, what bounds most exchanges, and how many of the paper's claims agree."""
    predicted = [point for point in points if point.prediction is not None]
    best = max(predicted, key=lambda point: point.speedup or 0.0)
    assert best.prediction is not None, "only points with predictions are compared"
    lines = [
        f"Up to {best.speedup:.2f} times faster than flat: {best.algorithm} on {best.ranks} GPUs with"
        f" {format_size(best.size)} each, {best.traffic} traffic ({seconds(best.prediction.seconds)})."
    ]
    if beside is not None:
        agreeing = sum(claim.agrees for claim in beside.claims)
        lines.append(f"{agreeing} of {len(beside.claims)} statements of Piper about these figures agree with it.")
    return "\n".join(lines)


def _refused(points: Sequence[Point]) -> str:
    reasons = dict.fromkeys(point.reason for point in points if point.reason)
    if not reasons:
        return "Headers sort."
    return f"Headers sort. Not predicted: {'; '.join(list(reasons)[:3])}{'; and others' if len(reasons) > 3 else ''}."


def _span(values: Sequence[int], show: Any) -> str:
    return str(show(values[0])) if len(values) == 1 else f"{show(min(values))} to {show(max(values))}"
