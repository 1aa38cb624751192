"""The page of a plan: one HTML file with data, scripts and styles, which works without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from contextlib import suppress
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

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


def write_page(path: Path, plan: Plan, smallest_gpus: Smallest | None = None) -> Path:
    """Write the page to ``path``; a reader never sees a part of the file.

    Args:
        smallest_gpus: on which the model fits, where that is known.

    Raises:
        ValueError: the file cannot be written.
    """
    refuse_place(path)
    text = render(plan, smallest_gpus)
    try:
        _replace(path, text)
    except OSError as error:
        raise ValueError(f"cannot write the page {path}: {error.strerror or error}; name another file") from None
    return path


def refuse_place(path: Path) -> None:
    """Nothing, if a page may be written there.

    Raises:
        ValueError: its folder is missing, or something that is no file has the name.
    """
    if not path.parent.is_dir():
        raise ValueError(
            f"cannot write the page {path}: there is no folder {path.parent}; make it, or name another file"
        )
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write the page {path}: it is no file; name another")


def render(plan: Plan, smallest_gpus: Smallest | None = None) -> str:
    """The page as one HTML document."""
    from plotly.offline import get_plotlyjs

    question = plan.question
    own = f'(function () {{\n"use strict";\n{_asset("page.js")}\n}})();'
    scripts = [get_plotlyjs(), own]
    title = f"{question.architecture.name} on {question.gpus} GPUs of {question.platform.name}"
    best = explain(plan, 1) if len(plan) else None
    data = payload(plan, best)
    return Template(_asset("page.html")).substitute(
        policy=_policy(scripts),
        title=escape(title),
        styles=_asset("page.css"),
        subtitle="<br>".join(escape(line) for line in terminal.heading(plan)[1:]),
        verdict=_paragraphs(_verdict(plan, best, smallest_gpus)),
        best=_paragraphs(_best(best)),
        known="".join(f"<li>{escape(line)}</li>" for line in (best.known if best else question.platform.describe())),
        refused=escape(_refused(data["overEp"])),
        data=_to_json(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
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


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())


def _asset(name: str) -> str:
    return (files("ciera_piper_core.planner") / name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    """A content security policy that runs these scripts and nothing else, and never asks a network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "form-action 'none'; base-uri 'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; {rest}"


def _to_json(value: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _replace(path: Path, text: str) -> None:
    """Write, fsync, rename."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
