"""The page of a plan: one HTML file with data, scripts and styles, which works without a network."""

from __future__ import annotations

from html import escape
from string import Template
from typing import TYPE_CHECKING, Any

from ciera_piper_core.page import frame
from ciera_piper_core.planner import terminal
from ciera_piper_core.planner.candidates import CONSTRAINTS
from ciera_piper_core.planner.ep_curve import memory_over_ep
from ciera_piper_core.planner.explain import explain, step_components
from ciera_piper_core.planner.formatting import percent, seconds

if TYPE_CHECKING:
    from pathlib import Path

    from ciera_piper_core.planner.explain import Explanation
    from ciera_piper_core.planner.fitting import Smallest
    from ciera_piper_core.planner.search import Plan

ROWS_SHOWN = 200
"""Strategies of the table."""

POINTS_SHOWN = 4000
"""Strategies of the scatter plot: the front, the best, and every n-th of the others."""

BREAKDOWNS_SHOWN = 8
"""Strategies whose time is broken down."""

OPERATIONS_SHOWN = 12_000
"""Bars of the pipeline plot; of a longer step, its beginning is shown."""

SECTIONS = (
    ("ranking", "Ranked strategies"),
    ("over-ep", "Memory against EP"),
    ("front", "MFU and memory"),
    ("ranks", "Memory of each rank"),
    ("times", "Where time goes"),
    ("pipeline", "Pipeline"),
    ("rejected", "Ruled out"),
    ("known", "Measured and assumed"),
)
"""Ids of the page's sections, and their links."""


def write_page(path: Path, plan: Plan, smallest_gpus: Smallest | None = None) -> Path:
    """Write the page to ``path``; a reader never sees a part of the file.

    Args:
        smallest_gpus: on which the model fits, where that is known.

    Raises:
        ValueError: the file cannot be written.
    """
    frame.refuse_place(path)
    return frame.write_page(path, render(plan, smallest_gpus))


def render(plan: Plan, smallest_gpus: Smallest | None = None) -> str:
    """The page as one HTML document."""
    question = plan.question
    best = explain(plan, 1) if len(plan) else None
    data = payload(plan, best)
    body = Template(frame.asset("ciera_piper_core.planner", "page.html")).substitute(
        best=frame.paragraphs(_best(best)),
        known=frame.items(best.known if best else question.platform.describe()),
        refused=escape(_refused(data["overEp"])),
    )
    return frame.document(
        title=f"{question.architecture.name} on {question.gpus} GPUs of {question.platform.name}",
        subtitle=terminal.heading(plan)[1:],
        verdict=_verdict(plan, best, smallest_gpus),
        sections=SECTIONS,
        body=body,
        data=data,
        script=frame.asset("ciera_piper_core.planner", "page.js"),
    )


def payload(plan: Plan, best: Explanation | None) -> dict[str, Any]:
    """What the page's script draws, as plain values; bytes are bytes, seconds seconds."""
    question = plan.question
    return {
        "memoryBytes": question.platform.memory_bytes,
        "ranking": [_ranking_row(plan, place) for place in range(min(ROWS_SHOWN, len(plan)))],
        "fitting": len(plan),
        "scatter": _scatter(plan),
        "overEp": _over_ep(plan),
        "ranks": None if best is None else _ranks(best),
        "times": _times(plan),
        "pipeline": None if best is None else _pipeline(best),
        "rejected": [[name, count, CONSTRAINTS[name]] for name, count in plan.rejected.items()],
    }


def _ranking_row(plan: Plan, place: int) -> list[Any]:
    prediction = plan[place]
    strategy = prediction.strategy
    return [
        place + 1,
        prediction.mfu,
        prediction.hfu,
        prediction.step_seconds,
        prediction.peak_memory_bytes,
        strategy.pp,
        strategy.ep,
        strategy.dp,
        strategy.tp,
        strategy.microbatches,
        strategy.sequences_per_microbatch,
        strategy.schedule,
        strategy.checkpointing,
        strategy.zero_stage,
        strategy.alltoall,
        prediction.pareto,
    ]


def _scatter(plan: Plan) -> dict[str, Any]:
    step = max(1, len(plan) // POINTS_SHOWN)
    places = sorted({*range(0, len(plan), step), *range(min(100, len(plan))), *plan.pareto_places})
    chosen = [plan[place] for place in places]
    return {
        "number": [place + 1 for place in places],
        "mfu": [each.mfu for each in chosen],
        "memory": [each.peak_memory_bytes for each in chosen],
        "pareto": [each.pareto for each in chosen],
        "text": [str(each.strategy) for each in chosen],
    }


def _over_ep(plan: Plan) -> list[dict[str, Any]]:
    """Half as many GPUs, as many, and twice as many."""
    question = plan.question
    counts = sorted({max(1, question.gpus // 2), question.gpus, min(2 * question.gpus, question.platform.max_gpus)})
    points = memory_over_ep(question, counts)
    return [
        {
            "gpus": gpus,
            "ep": [point.ep for point in points if point.gpus == gpus],
            "peak": [point.peak_memory_bytes for point in points if point.gpus == gpus],
            "state": [point.state_bytes for point in points if point.gpus == gpus],
            "oneHop": [point.single_hop for point in points if point.gpus == gpus],
            "text": [f"PP {point.pp}, TP {point.tp}" for point in points if point.gpus == gpus],
        }
        for gpus in counts
    ]


def _refused(over_ep: list[dict[str, Any]]) -> str:
    """Which of the points over EP the search refuses."""
    parts = []
    for series in over_ep:
        refused = [str(ep) for ep, inside in zip(series["ep"], series["oneHop"], strict=True) if not inside]
        if refused:
            parts.append(f"EP {', '.join(refused)} on {series['gpus']} GPUs")
    return f"Here: {'; '.join(parts)}." if parts else "Here it refuses none of them."


def _ranks(best: Explanation) -> dict[str, Any]:
    """Memory of each rank of the best strategy, in a few groups of components."""
    grouped: dict[str, list[float]] = {}
    for name, amounts in best.memory.items():
        head, colon, _ = name.partition(": ")
        label = name if not colon else "activations" if head == "activations" else f"state of {head}"
        before = grouped.get(label, [0.0] * len(amounts))
        grouped[label] = [a + b for a, b in zip(before, amounts, strict=True)]
    largest = sorted(grouped, key=lambda name: -max(grouped[name]))
    return {
        "components": [[name, grouped[name]] for name in largest],
        "layers": best.rank_layers,
        "inFlight": best.in_flight,
    }


def _times(plan: Plan) -> list[dict[str, Any]]:
    """Time by component of the best strategies of different meshes."""
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    for place in range(min(len(plan), 2000)):
        strategy = plan[place].strategy
        mesh = (strategy.pp, strategy.ep, strategy.dp, strategy.tp)
        if mesh in found:
            continue
        parts: dict[str, float] = {}
        for name, amount in step_components(plan.estimator, strategy, plan[place].step_seconds).items():
            label = name.partition(": ")[0] if "again" not in name else "computed again"
            parts[label] = parts.get(label, 0.0) + amount
        label = f"{place + 1}: PP {mesh[0]}, EP {mesh[1]}, DP {mesh[2]}, TP {mesh[3]}"
        found[mesh] = {"label": label, "parts": list(parts.items())}
        if len(found) == BREAKDOWNS_SHOWN:
            break
    return list(found.values())


def _pipeline(best: Explanation) -> dict[str, Any] | None:
    """The operations of the best strategy's schedule, by kind, the earliest first."""
    timeline = best.timeline
    if timeline is None:
        return None
    bars = [
        (float(start), float(end - start), rank, part.kind, part.stage, part.microbatch, str(operation))
        for rank, operations in enumerate(timeline.order)
        for operation, start, end in zip(
            operations, timeline.start_seconds[rank], timeline.end_seconds[rank], strict=True
        )
        for part in operation.parts[:1]
    ]
    bars.sort()
    shown = bars[:OPERATIONS_SHOWN]
    names = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}
    kinds = {name: [bar for bar in shown if bar[3] == kind] for kind, name in names.items()}
    return {
        "ranks": len(timeline.order),
        "shown": len(shown),
        "of": len(bars),
        "kinds": [
            {
                "name": name,
                "start": [bar[0] for bar in chosen],
                "length": [bar[1] for bar in chosen],
                "rank": [bar[2] for bar in chosen],
                "text": [bar[6] for bar in chosen],
            }
            for name, chosen in kinds.items()
            if chosen
        ],
    }


def _verdict(plan: Plan, best: Explanation | None, smallest_gpus: Smallest | None) -> str:
    if best is None:
        return terminal.nothing_fits(plan, smallest_gpus)
    prediction = best.prediction
    return (
        f"{percent(prediction.mfu)} MFU, {seconds(prediction.step_seconds)} a step: {prediction.strategy}.\n"
        f"{len(plan):,} of {plan.evaluated:,} estimated strategies fit."
    )


def _best(best: Explanation | None) -> str:
    if best is None:
        return ""
    timeline = best.timeline
    if timeline is None or best.simulated_step_seconds is None:
        return "The schedule has too many operations to draw."
    return (
        f"Over the stages as they are, the step takes {seconds(best.simulated_step_seconds)}; ranks wait"
        f" {percent(float(timeline.bubble.min()))} to {percent(float(timeline.bubble.max()))} of the pipeline's time."
    )
