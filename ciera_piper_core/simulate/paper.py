"""Piper's figures 5 and 8 beside predictions of the same exchanges, with the difference of each in words."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.sweep import Sweep, predict_sweep
from ciera_piper_core.simulate.table import format_size

if TYPE_CHECKING:
    from ciera_piper_core.simulate import Algorithm
    from ciera_piper_core.simulate.machine import Machine
    from ciera_piper_core.simulate.sweep import Point

MACHINE = "frontier"
"""The machine of the paper."""

HALO: tuple[Algorithm, ...] = tuple(name for name in ALGORITHMS if name.startswith("halo"))

PARITY = 0.25
"""Speedups that differ from 1 by no more are on par: the figure's curves below 16 nodes are said to be comparable."""

NEAR = 0.25
"""A peak that differs relatively by no more agrees."""

FIGURE5_FIRST_BYTES = 1 << 16
"""The figure's axis has no printed sizes; ours begins here."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what the prediction says to it."""

    paper: str
    ours: str
    agrees: bool


@dataclass(frozen=True)
class BandwidthCurve:
    """A curve of figure 5, ours.

    Attributes:
        gpus, nodes: of the exchange.
        sizes: bytes that each rank sends, its share for itself included.
        bytes_s: what leaves a rank, ``(n-1)/n`` of that, over the time; in the same order.
    """

    gpus: int
    nodes: int
    sizes: tuple[int, ...]
    bytes_s: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """A panel of figure 8, the paper's and ours.

    Attributes:
        nodes, gpus: of it.
        paper: the three printed peaks, the largest first; which variant has which is not printed.
        certain: whether they are this panel's for certain.
        sizes: bytes that each rank sends, as on the panel's axis.
        speedups: ours over the flat algorithm by variant, in the order of sizes.
        difference: of the peaks, in words.
    """

    nodes: int
    gpus: int
    paper: tuple[float, ...]
    certain: bool
    sizes: tuple[int, ...]
    speedups: dict[Algorithm, tuple[float, ...]]
    difference: str

    @property
    def peak(self) -> float:
        """The largest of ours."""
        return max(max(values) for values in self.speedups.values())

    @property
    def ratio(self) -> float:
        """Our peak over the paper's."""
        return self.peak / self.paper[0]


@dataclass(frozen=True)
class Comparison:
    """Both figures, and what the paper says of them."""

    figure5: tuple[BandwidthCurve, ...]
    figure8: tuple[Panel, ...]
    claims: tuple[Claim, ...]


def compare(machine: Machine) -> Comparison:
    """The exchanges of both figures, predicted on ``machine`` (the paper's, whatever its terms are).

    Raises:
        ValueError: the machine has no place for them.
    """
    curves, panels = _figure5(machine), _figure8(machine)
    return Comparison(curves, panels, (*_claims5(curves), *_claims8(machine, panels)))


@cache
def published() -> dict[str, Any]:
    """The paper's figures, from ``published.toml``."""
    return tomllib.loads((files("ciera_piper_core.simulate") / "published.toml").read_text(encoding="utf-8"))


def doubling_sizes(first: int, last: int) -> tuple[int, ...]:
    """``first``, twice that, ... up to ``last``."""
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= 2
    return tuple(sizes)


def _figure5(machine: Machine) -> tuple[BandwidthCurve, ...]:
    figure = published()["figure5"]
    sizes = doubling_sizes(FIGURE5_FIRST_BYTES, published()["figure8"]["last_bytes"])
    points = predict_sweep(Sweep(machine, tuple(figure["gpus"]), sizes, ("flat",)))
    return tuple(
        BandwidthCurve(
            gpus,
            -(-gpus // figure["gpus_per_node"]),
            sizes,
            tuple(_leaving_bytes_s(point) for point in points if point.ranks == gpus),
        )
        for gpus in figure["gpus"]
    )


def _figure8(machine: Machine) -> tuple[Panel, ...]:
    figure = published()["figure8"]
    panels = []
    for panel in figure["panels"]:
        sizes = doubling_sizes(panel["first_bytes"], figure["last_bytes"])
        gpus = panel["nodes"] * figure["gpus_per_node"]
        speedups = _speedups(predict_sweep(Sweep(machine, (gpus,), sizes, HALO)))
        paper = tuple(panel["peaks"])
        difference = _difference(paper, panel["certain"], speedups, sizes)
        panels.append(Panel(panel["nodes"], gpus, paper, panel["certain"], sizes, speedups, difference))
    return tuple(panels)


def _speedups(points: list[Point]) -> dict[Algorithm, tuple[float, ...]]:
    return {
        name: tuple(point.speedup for point in points if point.algorithm == name and point.speedup is not None)
        for name in HALO
    }


def _difference(
    paper: tuple[float, ...], certain: bool, speedups: dict[Algorithm, tuple[float, ...]], sizes: tuple[int, ...]
) -> str:
    peak, size, name = max((value, sizes[place], name) for name in HALO for place, value in enumerate(speedups[name]))
    where = f"our peak is {name}'s at {format_size(size)} a rank"
    if certain:
        compared = f"{peak / paper[0]:.2f} times the paper's largest"
    else:
        compared = f"{peak / paper[0]:.2f} times the largest that may be this panel's"
    least = min(min(values) for values in speedups.values())
    near = abs(peak / paper[0] - 1) <= NEAR
    verdict = "agrees" if near else "ours is higher" if peak > paper[0] else "ours is lower"
    return f"{verdict}: {compared}; {where}, our least {least:.2f}"


def _claims5(curves: tuple[BandwidthCurve, ...]) -> tuple[Claim, ...]:
    inside = [curve for curve in curves if curve.nodes == 1]
    across = [curve for curve in curves if curve.nodes > 1]
    before, after = max(inside[-1].bytes_s), max(across[0].bytes_s)
    mean = sum(max(curve.bytes_s) for curve in inside) / len(inside)
    stated = published()["figure5"]["intra_node_mean_bytes_s"]
    return (
        Claim(
            "Fig 5: bandwidth drops significantly as soon as nodes are crossed",
            f"{before / 1e9:.1f} GB/s on {inside[-1].gpus} GPUs of one node,"
            f" {after / 1e9:.1f} on {across[0].gpus} of two",
            after < (1 - PARITY) * before,
        ),
        Claim(
            f"inside a node an all-to-all reaches {stated / 1e9:g} GB/s on the mean",
            f"{mean / 1e9:.1f} GB/s, the mean over {', '.join(str(curve.gpus) for curve in inside)} GPUs of the best"
            " over sizes",
            abs(mean / stated - 1) <= NEAR,
        ),
    )


def _claims8(machine: Machine, panels: tuple[Panel, ...]) -> tuple[Claim, ...]:
    figure = published()["figure8"]
    per_node, below = figure["gpus_per_node"], []
    sizes = doubling_sizes(figure["panels"][0]["first_bytes"], figure["last_bytes"])
    nodes = 2
    while nodes <= figure["parity_nodes"]:
        best = _best(_speedups(predict_sweep(Sweep(machine, (nodes * per_node,), sizes, HALO))))
        below.append((nodes, min(best), max(best)))
        nodes *= 2
    peaks = [panel.peak for panel in panels]
    ranges = ", ".join(f"{nodes} nodes {least:.2f} to {most:.2f}" for nodes, least, most in below)
    every = ", ".join(f"{panel.nodes} nodes {panel.peak:.2f}" for panel in panels)
    return (
        Claim(
            f"Fig 8: on par with the library up to {figure['parity_nodes']} nodes",
            f"the best variant over sizes, {ranges}; on par means within {PARITY:.0%} of 1",
            all(abs(value - 1) <= PARITY for _, least, most in below for value in (least, most)),
        ),
        Claim(
            f"Fig 8: gains from {figure['gain_nodes']} nodes up",
            f"peaks: {every}",
            min(peaks) >= figure["least"],
        ),
        Claim(
            f"Fig 8: {figure['least']:g} to {figure['most']:g} times lower latency",
            f"our peaks are {min(peaks):.2f} to {max(peaks):.2f}",
            min(peaks) >= figure["least"] and max(peaks) <= figure["most"],
        ),
        Claim(
            "Fig 8: the largest gain is at 32 nodes, and it falls beyond",
            f"ours is at {max(panels, key=lambda panel: panel.peak).nodes} nodes",
            max(panels, key=lambda panel: panel.peak).nodes == max(panels, key=lambda panel: panel.paper[0]).nodes,
        ),
    )


def _best(speedups: dict[Algorithm, tuple[float, ...]]) -> list[float]:
    return [max(values) for values in zip(*speedups.values(), strict=True)]


def _leaving_bytes_s(point: Point) -> float:
    assert point.prediction is not None, "the figures' exchanges all have predictions"
    return point.size * (point.ranks - 1) / point.ranks / point.prediction.seconds
