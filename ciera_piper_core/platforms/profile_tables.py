"""From the rows of a platform profile to curves of attention blocks, experts and matrix products."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from ciera_piper_core.models import catalogue
from ciera_piper_core.platforms import shapes
from ciera_piper_core.platforms.measured import AttentionCurve, ExpertCurve, attention_dimensions
from ciera_piper_core.platforms.tables import RateCurve, SecondsCurve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ciera_piper_core.models.architecture import Architecture

    Row = Mapping[str, Any]
    Lacks = Callable[[str, str], ValueError]
    Points = list[tuple[float, float]]

LEAST_BACKWARD = 0.5
"""A backward pass below this share of the forward one is noise of a difference of two times; then both
directions count as equally fast."""


def matmul_curve(peak: Row) -> SecondsCurve:
    """Seconds against operations, from the points of one ``matmul_peak`` entry: the median over shapes."""
    by_operations: defaultdict[float, list[float]] = defaultdict(list)
    for row in peak["points"]:
        m, n, k = (float(row["params"][edge]) for edge in ("m", "n", "k"))
        operations = 2 * m * n * k
        by_operations[operations].append(operations / _rate(row))
    points = [(operations, median(seconds)) for operations, seconds in by_operations.items()]
    return SecondsCurve.from_points(points, below="proportional")


def attention_curves(rows: Iterable[Row], lacks: Lacks) -> tuple[AttentionCurve, ...]:
    """Rates of blocks against the sequence, one curve a model and tensor-parallel degree.

    Args:
        rows: of one dtype and device.
        lacks: makes the error for a missing table.

    Raises:
        ValueError: no forward row of a model that the catalogue has.
    """
    groups: defaultdict[tuple[str, int], dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        params = row["params"]
        key = str(params["model"]), int(params["tensor_parallel"])
        # Of several batches at one sequence, the largest in the file's order is the last; rates hardly differ.
        groups[key][str(params["direction"])][float(params["sequence"])] = _rate(row)
    curves = []
    for (model, ranks), by_direction in groups.items():
        architecture = _known(model)
        if architecture is None or not by_direction["forward"]:
            continue
        attention, hidden = architecture.attention, architecture.hidden

        def flops(sequence: float, architecture: Architecture = architecture, ranks: int = ranks) -> float:
            return float(shapes.block_flops(architecture.attention, architecture.hidden, sequence, ranks)) * sequence

        forward = by_direction["forward"]
        backward = _backward_rates(forward, by_direction["forward_backward"], flops)
        curves.append(
            AttentionCurve(
                name=f"{model} tensor_parallel={ranks}",
                dimensions=attention_dimensions(attention, hidden, ranks),
                kind=attention.head_kind,
                forward=RateCurve.from_points(list(forward.items())),
                backward=RateCurve.from_points(list(backward.items())) if backward else None,
            )
        )
    if not curves:
        raise lacks("forward rows of attention of a model in the catalogue", "attention")
    return tuple(curves)


def expert_curves(rows: Iterable[Row], lacks: Lacks) -> tuple[ExpertCurve, ...]:
    """Seconds a weight against tokens an expert, one curve a model and number of experts.

    Only evenly spread tokens count: a plan counts imbalance by itself, with the load of the busiest
    device. Of the grouped and the looped method, the faster counts at each point.

    Args:
        rows: of one dtype and device.
        lacks: makes the error for a missing table.

    Raises:
        ValueError: no forward row with uniform tokens of a model that the catalogue has.
    """
    groups: defaultdict[tuple[str, int], dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        params = row["params"]
        if params["distribution"] == "uniform":
            experts = int(params["experts"])
            best = groups[str(params["model"]), experts][str(params["direction"])]
            rows_each = float(params["tokens"]) / experts
            best[rows_each] = max(_rate(row), best.get(rows_each, 0.0))
    curves = []
    for (model, experts), by_direction in groups.items():
        architecture = _known(model)
        forward = by_direction["forward"]
        if architecture is None or not forward:
            continue
        shape = architecture.experts
        backward = _backward_rates(forward, by_direction["forward_backward"], float)
        curves.append(
            ExpertCurve(
                name=f"{model} with {experts} experts",
                dimensions=(float(architecture.hidden), float(shape.ffn), float(shape.matrices)),
                forward=SecondsCurve.from_points(_seconds_a_weight(forward, 2)),
                backward=SecondsCurve.from_points(_seconds_a_weight(backward, 4)) if backward else None,
            )
        )
    if not curves:
        raise lacks("forward rows of expert_gemm with distribution=uniform of a model in the catalogue", "expert_gemm")
    return tuple(curves)


def _seconds_a_weight(rates: Mapping[float, float], operations: int) -> Points:
    """A row of tokens does so many operations a weight."""
    return [(rows, operations * rows / rate) for rows, rate in rates.items()]


def _backward_rates(
    forward: Mapping[float, float], both: Mapping[float, float], flops: Callable[[float], float]
) -> dict[float, float]:
    """Rates of the backward pass alone, where both directions were measured.

    Args:
        forward, both: rates by size; both directions have three times the operations of forward.
        flops: of forward, by size (or anything in proportion).
    """
    rates = {}
    for size in forward.keys() & both.keys():
        work = flops(size)
        ahead, whole = work / forward[size], 3 * work / both[size]
        backward = whole - ahead
        rates[size] = both[size] if backward < LEAST_BACKWARD * ahead else 2 * work / backward
    return rates


def _known(model: str) -> Architecture | None:
    """The architecture, or None: a profile of a newer version may have models that this one does not know."""
    try:
        return catalogue.load(model)
    except ValueError:
        return None


def _rate(row: Row) -> float:
    """Operations a second of a row."""
    return float(row["values"]["throughput"]) * 1e12
