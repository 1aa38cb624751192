"""Comm(x): the measured latency of an Allgather to which every rank contributes x bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ciera_piper_core.platforms.collective_curves import LIBRARY_ALGORITHMS
from ciera_piper_core.platforms.tables import SecondsCurve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

SUITE_PREFERENCE = ("allgather_latency", "collectives")
"""Suites whose rows have it; the first is the denser in size."""


@dataclass(frozen=True)
class Comm:
    """Seconds of the plain Allgather against bytes a rank, between measured points linear with both axes logarithmic.

    Attributes:
        curve: seconds against the bytes that a rank contributes.
        ranks: that took part. nodes: that they were on.
        source: where it is from, for people.
        unsettled: points whose median was not steady.
        scope: where the ranks talked, as in rows; empty if unknown.
    """

    curve: SecondsCurve
    ranks: int
    nodes: int
    source: str
    unsettled: int = 0
    scope: str = ""

    @classmethod
    def from_points(
        cls,
        points: Sequence[tuple[float, float]],
        ranks: int,
        nodes: int,
        source: str,
        unsettled: int = 0,
        scope: str = "",
    ) -> Comm:
        """A curve through ``(bytes a rank, seconds)``.

        Raises:
            ValueError: no point, or one that is not above 0.
        """
        return cls(SecondsCurve.from_points(points), ranks, nodes, source, unsettled, scope)

    def seconds_at(self, bytes_a_rank: ArrayLike) -> NDArray[np.float64]:
        """Seconds, in the shape of ``bytes_a_rank`` (above 0); ``note`` says what of it is extrapolated."""
        return self.curve.seconds_at(bytes_a_rank)

    def note(self, bytes_a_rank: ArrayLike) -> str:
        """How far the sizes lie outside what was measured; empty if they do not."""
        outside = ~self.curve.covers(bytes_a_rank)
        if not outside.any():
            return ""
        return (
            f"Comm is extrapolated for {int(outside.sum())} of {outside.size} payload size(s): measured from"
            f" {self.curve.sizes[0]:,.0f} to {self.curve.sizes[-1]:,.0f} bytes a rank"
        )


def profile_comm(
    curves: Iterable[Mapping[str, Any]], ranks: int, nodes: int | None = None, scope: str | None = None
) -> Comm:
    """The library's Allgather of so many ranks, from a platform profile's ``collectives``.

    Args:
        curves: entries of the section.
        ranks: of the gather.
        nodes: that they are on; None for the fewest measured.
        scope: where the ranks talked (``loopback``, ``node``, ``lab``, ``cluster``); None prefers a real
            network to an emulated one.

    Raises:
        ValueError: no such curve; the message names those that there are, and what to run.
    """
    gathers = [curve for curve in curves if _is_plain_gather(curve)]
    fits = [
        curve
        for curve in gathers
        if curve["ranks"] == ranks and nodes in (None, curve["nodes"]) and scope in (None, curve["scope"])
    ]
    if not fits:
        known = sorted({(curve["ranks"], curve["nodes"], curve["scope"]) for curve in gathers})
        listed = ", ".join(f"{world} ranks on {on} node(s), {where}" for world, on, where in known) or "none at all"
        on = f" on {nodes} node(s)" if nodes else ""
        where = f", {scope}" if scope else ""
        raise ValueError(
            f"the profile has no all_gather of {ranks} ranks{on}{where} (it has {listed});"
            f" run `bench characterize --preset standard --ranks {ranks}`"
        )
    best = min(fits, key=_preference)
    points = [(point["bytes"] / best["ranks"], point["latency_us"] * 1e-6) for point in best["points"]]
    lab = f" {best['lab']}" if best["lab"] else ""
    return Comm.from_points(
        points,
        ranks=int(best["ranks"]),
        nodes=int(best["nodes"]),
        source=f"{best['suite']}, {best['ranks']} ranks on {best['nodes']} node(s), {best['scope']}{lab}",
        unsettled=sum(not point["settled"] for point in best["points"]),
        scope=best["scope"],
    )


def _is_plain_gather(curve: Mapping[str, Any]) -> bool:
    return (
        curve["op"] == "all_gather"
        and curve["suite"] in SUITE_PREFERENCE
        and curve["algorithm"] in ("", *LIBRARY_ALGORITHMS)
        and curve["traffic"] in ("", "uniform")
        and curve["ranks"] > 1
    )


def _preference(curve: Mapping[str, Any]) -> tuple[Any, ...]:
    """Real before emulated, fewest nodes, then the suite that is denser in size, then 2-byte types."""
    return (
        curve["scope"] == "lab",
        curve["nodes"],
        SUITE_PREFERENCE.index(curve["suite"]),
        curve["dtype"] not in ("bfloat16", "float16"),
        -len(curve["points"]),
        curve["lab"],
    )
