"""Which all-to-all algorithm is fastest where: curves by placement, skew and bytes, and a choice with reasons."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ciera_piper_core.alltoall import ALGORITHMS, TRAFFIC_KINDS
from ciera_piper_core.alltoall.traffic import traffic_matrix
from ciera_piper_core.alltoall.traffic_steps import skew
from ciera_piper_core.platforms.tables import SecondsCurve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CHOICES = tuple(name for name in ALGORITHMS if name != "auto")

FLAT_MARGIN = 0.03
"""Another algorithm must promise to be faster than flat by more than this: below is noise, and flat needs no help."""

OCTAVES = 1.0
"""A placement without measurements may use those of one with up to twice, or half, the nodes and ranks a node."""

SKEW_ROWS = 1 << 16
"""Rows a rank of the traffic whose skew stands for that of its kind."""


@dataclass(frozen=True)
class Choice:
    """An algorithm, and why.

    Attributes:
        algorithm: of ``CHOICES``.
        seconds: by algorithm, the time that is expected.
        reason: a sentence for people.
    """

    algorithm: str
    seconds: Mapping[str, float]
    reason: str


@dataclass(frozen=True)
class MeasuredCurve:
    """One algorithm's time on one placement under one kind of traffic.

    Attributes:
        algorithm: of ``CHOICES``.
        nodes, ranks: of the group.
        skew: of the traffic, as ``traffic_steps.skew`` takes it.
        seconds: against the mean of the bytes that a rank sends.
        traffic, source: for people.
    """

    algorithm: str
    nodes: int
    ranks: int
    skew: float
    seconds: SecondsCurve
    traffic: str
    source: str


@dataclass(frozen=True)
class Crossovers:
    """All curves that a choice rests on."""

    curves: tuple[MeasuredCurve, ...]

    def covers(self, nodes: int, ranks: int) -> bool:
        """Whether anything was measured on such a placement, or one near enough."""
        return bool(self._near(nodes, ranks))

    def choose(
        self, nodes: int, ranks: int, bytes_per_rank: float, skewed: float = 1.0, *, equal: bool = True
    ) -> Choice:
        """The algorithm for an exchange.

        Equal shares need no counts, so they are judged by uniform traffic, and other exchanges, slight
        as their skew may be, by traffic that is not; each by the other where nothing else was measured.

        Args:
            nodes, ranks: of the group.
            bytes_per_rank: mean over ranks of what they send, their share for themselves included.
            skewed: the most that a rank sends or receives, over that mean.
            equal: shares are equal, and known to be.
        """
        curves = self._near(nodes, ranks)
        curves = [curve for curve in curves if (curve.traffic == "uniform") == equal] or curves
        if not curves:
            return Choice("flat", {}, f"flat: nothing was measured on anything like {ranks} ranks on {nodes} node(s)")
        nearest = min({curve.skew for curve in curves}, key=lambda known: (abs(math.log(known / skewed)), known))
        fits = [curve for curve in curves if curve.skew == nearest]
        size = max(bytes_per_rank, 1.0)
        seconds = {curve.algorithm: float(curve.seconds.seconds_at(size)) for curve in fits}
        best = min(seconds, key=lambda name: (seconds[name], CHOICES.index(name)))
        flat = seconds["flat"]
        chosen = best if seconds[best] < flat * (1 - FLAT_MARGIN) else "flat"
        return Choice(chosen, seconds, self._reason(chosen, best, seconds, fits[0], (nodes, ranks), (size, skewed)))

    def _near(self, nodes: int, ranks: int) -> list[MeasuredCurve]:
        """Curves of the placement nearest to this one; none if all are too far away."""

        def distance(curve: MeasuredCurve) -> tuple[float, float]:
            by_nodes = abs(math.log2(curve.nodes / nodes))
            by_ranks = abs(math.log2(curve.ranks / curve.nodes / (ranks / nodes)))
            return max(by_nodes, by_ranks), by_nodes + by_ranks

        # What one node has measured says nothing about a network, and the reverse.
        alike = [curve for curve in self.curves if (curve.nodes == 1) == (nodes == 1)]
        best = min((distance(curve) for curve in alike), default=None)
        if best is None or best[0] > OCTAVES + 1e-9:
            return []
        nearest = min((curve.nodes, curve.ranks) for curve in alike if distance(curve) == best)
        return [curve for curve in alike if (curve.nodes, curve.ranks) == nearest]

    def _reason(
        self,
        chosen: str,
        best: str,
        seconds: Mapping[str, float],
        curve: MeasuredCurve,
        placement: tuple[int, int],
        wanted: tuple[float, float],
    ) -> str:
        size, skewed = wanted
        times = ", ".join(f"{name} {value * 1e6:.4g}" for name, value in sorted(seconds.items(), key=lambda at: at[1]))
        text = f"{chosen} for {size:.4g} bytes a rank, skew {skewed:.2f}: expected us are {times}"
        if chosen != best:
            text += f"; {best} is not faster than flat by more than {FLAT_MARGIN:.0%}"
        notes = []
        if (curve.nodes, curve.ranks) != placement:
            notes.append(
                f"of {curve.ranks} ranks on {curve.nodes} node(s), the nearest to {placement[1]} on {placement[0]}"
            )
        if not curve.seconds.covers(size):
            low, high = curve.seconds.sizes[0], curve.seconds.sizes[-1]
            notes.append(f"beyond the {low:.4g} to {high:.4g} bytes that were measured")
        return f"{text} ({'; '.join([f'{curve.traffic} traffic, {curve.source}', *notes])})"


def from_points(
    points: Iterable[tuple[str, int, int, str, float, float]], skews: Mapping[tuple[str, int], float], source: str
) -> Crossovers:
    """Curves from ``(algorithm, nodes, ranks, traffic, bytes a rank, seconds)``.

    Only sets of curves that can be compared count: of one placement and traffic, with flat and
    another algorithm, over the sizes that all of its algorithms were measured at.

    Args:
        skews: by traffic and ranks.
    """
    sets: defaultdict[tuple[int, int, str], defaultdict[str, dict[float, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for algorithm, nodes, ranks, traffic, size, seconds in points:
        by_size = sets[nodes, ranks, traffic][algorithm]
        by_size[size] = min(seconds, by_size.get(size, math.inf))
    curves = []
    for (nodes, ranks, traffic), by_algorithm in sorted(sets.items()):
        common = set.intersection(*(set(by_size) for by_size in by_algorithm.values()))
        if "flat" not in by_algorithm or len(by_algorithm) < 2 or not common:
            continue
        for algorithm, by_size in sorted(by_algorithm.items()):
            curve = SecondsCurve.from_points([(size, by_size[size]) for size in common])
            curves.append(MeasuredCurve(algorithm, nodes, ranks, skews[traffic, ranks], curve, traffic, source))
    return Crossovers(tuple(curves))


def from_profile(path: Path, device: str = "cpu") -> Crossovers:
    """The curves of a platform profile that the suite ``alltoall`` measured; none if it did not.

    Where both a real network and an emulated one were measured with as many nodes and ranks, the
    real one counts.

    Args:
        device: where the exchanged tensors are, ``cpu`` or ``cuda``.

    Raises:
        ValueError: it cannot be read, or is no platform profile of a version that this knows.
    """
    if path.is_dir():
        path /= "profile.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read profile {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no platform profile; make one with `bench characterize`") from None
    if not isinstance(data, dict) or data.get("schema_version") != 1 or "collectives" not in data:
        raise ValueError(f"{path} is no platform profile of version 1; make one with `bench characterize`")
    points: list[tuple[str, int, int, str, float, float]] = []
    skews: dict[tuple[str, int], float] = {}
    curves = [curve for curve in data["collectives"] if _counts(curve, device)]
    real = {(curve["nodes"], curve["ranks"]) for curve in curves if curve["scope"] != "lab"}
    for curve in curves:
        if curve["scope"] == "lab" and (curve["nodes"], curve["ranks"]) in real:
            continue
        key = str(curve["traffic"]), int(curve["ranks"])
        if key not in skews:
            skews[key] = kind_skew(*key)
        points += [
            (
                curve["algorithm"],
                int(curve["nodes"]),
                key[1],
                key[0],
                float(point["bytes"]),
                float(point["latency_us"]) * 1e-6,
            )
            for point in curve["points"]
        ]
    return from_points(points, skews, f"profile {path.name}")


def _counts(curve: Mapping[str, Any], device: str) -> bool:
    """Whether a profile's curve is of an algorithm to choose."""
    return (
        (curve["suite"], curve["op"]) == ("alltoall", "all_to_all")
        and curve["algorithm"] in CHOICES
        and curve["traffic"] in TRAFFIC_KINDS
        and curve["device"] in ("", device)
        and curve["ranks"] > 1
    )


def kind_skew(kind: Any, ranks: int) -> float:
    """The skew of a kind of ``TRAFFIC_KINDS``; the seed renames ranks, so it does not matter."""
    if kind == "idle_rank" and ranks < 2:
        return 1.0
    return skew(traffic_matrix(kind, ranks, SKEW_ROWS, seed=0))
