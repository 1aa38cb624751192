"""A plan as plain values: the object that ``bench plan --json`` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ciera_piper_core.models.parameters import model_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.planner.explain import Explanation
    from ciera_piper_core.planner.fitting import Smallest
    from ciera_piper_core.planner.migration import Migration
    from ciera_piper_core.planner.range import RangeRow
    from ciera_piper_core.planner.search import NearestMiss, Plan, Prediction


def plan_record(
    plan: Plan,
    top: int,
    *,
    smallest_gpus: Smallest | None = None,
    rows: Sequence[RangeRow] = (),
    explanation: Explanation | None = None,
) -> dict[str, Any]:
    """The plan with its best ``top`` strategies.

    Args:
        smallest_gpus: on which the model fits, where that was asked or nothing fits.
        rows: of a range of GPUs.
        explanation: of one strategy.
    """
    question = plan.question
    parameters = model_parameters(question.architecture, mtp=question.mtp)
    miss = plan.nearest_miss
    fits_on_more = smallest_gpus is not None and smallest_gpus.gpus > question.gpus
    record: dict[str, Any] = {
        "model": question.architecture.name,
        "platform": question.platform.name,
        "gpus": question.gpus,
        "total_parameters": parameters.total,
        "active_parameters": parameters.active,
        "sequence": question.sequence,
        "batch": question.batch_rule,
        "global_batch": question.global_sequences,
        "sequences_per_gpu": question.sequences_per_gpu,
        "optimizer": question.optimizer,
        "precision": question.precision,
        "flash": question.flash,
        "routing": question.routing_text,
        "load_factor": question.routing.load_factor,
        "zipf": question.routing.zipf,
        "overlap": asdict(question.overlap),
        "placement": question.placement,
        "flop_convention": question.convention,
        "flops_per_token": plan.estimator.flops_per_token,
        "peak_flops": question.platform.peak,
        "peak_source": question.platform.peak_source,
        "memory_bytes": question.platform.memory_bytes,
        "measured": sorted(question.platform.measured),
        "measured_figures": sum(term.figures for term in question.platform.terms.values()),
        "unsettled_figures": sum(term.unsettled for term in question.platform.terms.values()),
        "evaluated": plan.evaluated,
        "fitting": len(plan),
        "strategies": [strategy_record(plan, prediction) for prediction in plan.top(top)],
        "rejected": [{"constraint": name, "count": count} for name, count in plan.rejected.items()],
        "nearest_miss": None if miss is None else _miss_record(miss, fits_on_more),
        "smallest_gpus": None if smallest_gpus is None else smallest_gpus.gpus,
        "smallest_gpus_exact": None if smallest_gpus is None else smallest_gpus.exact,
    }
    if rows:
        record["range"] = [asdict(row) for row in rows]
    if explanation is not None:
        record["explanation"] = explanation_record(explanation)
    return record


def _miss_record(miss: NearestMiss, fits_on_more: bool) -> dict[str, Any]:
    found = {**asdict(miss), "over_bytes": miss.over_bytes, "advice": miss.helps(fits_on_more)}
    del found["more_gpus"]
    return found


def strategy_record(plan: Plan, prediction: Prediction) -> dict[str, Any]:
    """One strategy with its prediction."""
    return {
        **asdict(prediction.strategy),
        "global_batch": prediction.strategy.global_batch,
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "step_seconds": prediction.step_seconds,
        "peak_memory_bytes": prediction.peak_memory_bytes,
        "stage_memory_bytes": plan.estimator.stage_memory_bytes(prediction.strategy),
        "pareto": prediction.pareto,
        "simulated": prediction.simulated,
    }


def _migration_record(cost: Migration) -> dict[str, Any]:
    return {
        **asdict(cost),
        "bytes_per_gpu": cost.bytes_per_gpu,
        "seconds": cost.seconds,
        "expected_seconds": cost.expected_seconds,
    }


def explanation_record(explanation: Explanation) -> dict[str, Any]:
    """One strategy in detail; the timeline is left out."""
    timeline = explanation.timeline
    return {
        "number": explanation.number,
        "memory_bytes": explanation.memory,
        "layers": explanation.rank_layers,
        "in_flight": explanation.in_flight,
        "step_seconds": explanation.time,
        "bubble": None if timeline is None else [float(share) for share in timeline.bubble],
        "simulated_step_seconds": explanation.simulated_step_seconds,
        "communication": [asdict(exchange) for exchange in explanation.exchanges],
        "flops_per_token": explanation.flops_per_token,
        "recomputed_flops_per_token": explanation.recomputed_flops_per_token,
        "paper_memory_bytes": explanation.paper_rank_bytes,
        "migration": None if explanation.migration is None else _migration_record(explanation.migration),
        "known": explanation.known,
    }
