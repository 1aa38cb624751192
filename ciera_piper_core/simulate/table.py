"""A sweep as text: a line an exchange, with each algorithm's speedup over the flat one and what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.planner.formatting import seconds
from ciera_piper_core.planner.terminal import table
from ciera_piper_core.simulate.record import known_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ciera_piper_core.simulate import Bottleneck
    from ciera_piper_core.simulate.machine import Machine
    from ciera_piper_core.simulate.paper import Comparison
    from ciera_piper_core.simulate.sweep import Point, Sweep

SIZES_SHOWN = 6
"""Sizes of a longer sweep that the table has, unless all are asked for: the first, the last, and some between."""

SHORT: dict[Bottleneck, str] = {"intra-node": "node", "message rate": "rate", "packing": "pack"}
"""Bottlenecks that have a shorter name in a cell."""

FACTORS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


def sweep_text(sweep: Sweep, points: Sequence[Point], every: bool = False, notes: Sequence[str] = ()) -> str:
    """The table of each kind of traffic, with what stands behind the numbers.

    Args:
        every: whether all sizes are shown.
        notes: lines about the calibration.
    """
    shown = sweep.sizes if every else chosen_sizes(sweep.sizes)
    blocks = [f"all-to-all on {sweep.machine.name}: {sweep.machine.network.name}"]
    for traffic in sweep.traffic:
        kept = [point for point in points if point.traffic == traffic and point.size in shown]
        blocks.append(f"{traffic} traffic\n{_table(sweep, kept)}")
    blocks.append(_notes(sweep, points, len(shown)))
    blocks.append("\n".join((*notes, *known_lines(sweep.machine))))
    return "\n\n".join(blocks)


def paper_text(beside: Comparison) -> str:
    """Piper's figure 8 and statements beside the predictions."""
    rows = [
        (
            panel.nodes,
            panel.gpus,
            ", ".join(f"{peak:.2f}" for peak in panel.paper) + ("" if panel.certain else " (a guess)"),
            ", ".join(f"{max(values):.2f}" for values in panel.speedups.values()),
            f"{panel.ratio:.2f}",
            panel.difference,
        )
        for panel in beside.figure8
    ]
    headers = ("nodes", "GPUs", "Piper's Fig 8 peaks", "ours: V0, V1, V2", "ratio", "difference")
    said = [(claim.paper, claim.ours, "yes" if claim.agrees else "no") for claim in beside.claims]
    blocks = table(rows, headers, right=(0, 1, 4)), table(said, ("Piper", "predicted", "agrees"))
    return "\n\n".join(blocks)


def chosen_sizes(sizes: Sequence[int], most: int = SIZES_SHOWN) -> tuple[int, ...]:
    """The first size, the last, and some between, evenly by their place."""
    if len(sizes) <= most:
        return tuple(sizes)
    return tuple(sizes[round(place * (len(sizes) - 1) / (most - 1))] for place in range(most))


def known_lines(machine: Machine) -> list[str]:
    """Which rates and terms were measured and which were not, and each with its source."""
    measured = ", ".join(known_names(machine)[0]) or "none"
    return [f"measured on this machine: {measured}; all others are specified or assumed:"] + [
        f"  {line}" for line in machine.describe()
    ]


def format_size(size: int) -> str:
    """Bytes in the largest binary unit that is not above them; a decimal point marks a rounded figure."""
    for unit, factor in FACTORS.items():
        if size >= factor:
            return f"{size // factor}{unit}" if size % factor == 0 else f"{size / factor:.2f}{unit}"
    return f"{size}B"


def _table(sweep: Sweep, points: Iterable[Point]) -> str:
    cells: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        cells.setdefault((point.ranks, point.size), []).append(point)
    rows = [_row(of_cell) for of_cell in cells.values()]
    headers = ("GPUs", "nodes", "bytes a GPU", "flat takes", *sweep.algorithms, "best")
    return table(rows, headers, right=(0, 1, 2, 3))


def _row(points: list[Point]) -> tuple[object, ...]:
    first = points[0]
    head = (first.ranks, first.nodes, format_size(first.size))
    if first.prediction is None or first.flat_s is None:
        return (*head, "-", *("-" for _ in points), first.reason)
    best = max(points, key=lambda point: point.speedup or 0.0)
    # All that fall back to flat are equally fast; then none is best.
    name = best.algorithm if (best.speedup or 0) > 1.005 or best.algorithm == "flat" else "flat"
    return (*head, seconds(first.flat_s), *(_cell(point) for point in points), name)


def _cell(point: Point) -> str:
    """Speedup and bottleneck; = where the flat algorithm runs instead."""
    assert point.prediction is not None, "only exchanges with predictions have cells"
    if point.prediction.fallback:
        return "= flat"
    bottleneck = SHORT.get(point.prediction.bottleneck, point.prediction.bottleneck)
    return f"{point.speedup:.2f} {bottleneck}"


def _notes(sweep: Sweep, points: Sequence[Point], sizes_shown: int) -> str:
    lines = [
        "A cell is the speedup over flat and what most of the time goes to: node (its fabric), NIC, switch, global"
        " (links between groups), rate (messages), pack."
    ]
    if any(point.prediction and point.prediction.fallback for point in points):
        lines.append('"= flat": one node, one rank a node or uneven nodes, where this algorithm is the flat one.')
    if sizes_shown < len(sweep.sizes):
        lines.append(f"{sizes_shown} of {len(sweep.sizes)} sizes; --all shows each, --json has each as rows.")
    return "\n".join(lines)
