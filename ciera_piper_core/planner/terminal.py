"""A plan as text: the ranked table, one strategy in detail, what was ruled out and what nearly fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.planner.candidates import CONSTRAINTS
from ciera_piper_core.planner.formatting import billions, both, gib, percent, seconds, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ciera_piper_core.planner.explain import Explanation
    from ciera_piper_core.planner.range import RangeRow
    from ciera_piper_core.planner.search import NearestMiss, Plan, Prediction

RANKS_SHOWN = 6
"""Columns of ranks in a table of memory; of a longer pipeline the first ones, the fullest, and the last are shown."""

HEADERS = (
    "#", "MFU", "HFU", "step", "peak", "PP", "EP", "DP", "TP", "microbatches", "schedule", "checkpoint", "ZeRO",
    "all-to-all", "",
)  # fmt: skip


def table(rows: Iterable[Sequence[object]], headers: Sequence[str], right: Sequence[int] = ()) -> str:
    """Plain columns; those of ``right`` are aligned to the right."""
    from tabulate import tabulate

    aligned = ["right" if place in right else "left" for place in range(len(headers))]
    return tabulate(list(rows), headers=list(headers), tablefmt="simple", colalign=aligned, disable_numparse=True)


def heading(plan: Plan) -> list[str]:
    """What was asked, in a few lines."""
    question, platform = plan.question, plan.question.platform
    parameters = model_parameters(question.architecture, mtp=question.mtp)
    measured = ", ".join(sorted(platform.measured)) or "nothing"
    return [
        f"{question.architecture.name} ({billions(parameters.total)} parameters, {billions(parameters.active)} active)"
        f" on {question.gpus} x {platform.device} of {platform.name}, {both(platform.memory_bytes)} each",
        f"sequence {question.sequence}, {question.batch_rule}",
        f"{question.optimizer}, {question.precision}, {'fused' if question.flash else 'unfused'} attention,"
        f" routing {question.routing}, {question.placement} expert placement",
        f"MFU: {question.convention} convention, {significant(plan.estimator.flops_per_token / 1e9)} GFLOP a token"
        f" forward and backward, against {significant(platform.peak / 1e12, 4)} TFLOP/s a GPU ({platform.peak_source})",
        f"measured on this platform: {measured}; everything else is specified or assumed (--explain says which)",
    ]


def ranking(plan: Plan, top: int) -> str:
    """The best strategies as a table."""
    rows = [_row(number, prediction) for number, prediction in enumerate(plan.top(top), start=1)]
    note = f"{len(plan)} of {plan.evaluated} estimated strategies fit; * on the Pareto front of MFU and memory"
    return table(rows, HEADERS, right=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12)) + "\n\n" + note


def rejections(plan: Plan) -> str:
    """How many strategies each constraint ruled out."""
    rows = [(name, f"{count:,}", CONSTRAINTS[name]) for name, count in plan.rejected.items()]
    return table(rows, ("ruled out by", "strategies", "the constraint"), right=(1,)) if rows else ""


def nothing_fits(plan: Plan, smallest: int | None) -> str:
    """Why there is no strategy, and what would help."""
    question = plan.question
    gpus = "1 GPU" if question.gpus == 1 else f"{question.gpus} GPUs"
    lines = [f"No strategy fits {question.architecture.name} on {gpus} of {question.platform.name}."]
    if plan.nearest_miss is not None:
        lines += _miss(plan.nearest_miss)
    elif not plan.evaluated:
        lines.append("No strategy passes the constraints that come before memory; the table says which.")
    else:
        lines.append("Some fit into memory, but another constraint rules each of them out; the table says which.")
    if smallest is not None:
        free = ", with any PP, EP, DP and TP" if question.only.keys() & {"pp", "ep", "dp", "tp"} else ""
        lines.append(f"The smallest number of GPUs that would do{free}: {smallest}.")
    else:
        lines.append(
            f"No number of GPUs up to the platform's {question.platform.max_gpus} would do with these settings."
        )
    return "\n".join(lines)


def _miss(miss: NearestMiss) -> list[str]:
    return [
        f"Nearest: {miss.strategy}.",
        f"Its fullest pipeline rank, {miss.fullest_rank}, would need {both(miss.peak_memory_bytes)} of"
        f" {both(miss.memory_bytes)}: {both(miss.over_bytes)} too much.",
        f"Most of it is the {miss.dominant}, {both(miss.dominant_bytes)}. What helps: {miss.advice}.",
    ]


def range_table(rows: Iterable[RangeRow], smallest: int | None) -> str:
    """The best strategy on each number of GPUs."""
    shown = [
        (
            f"{row.gpus}{' <' if row.gpus == smallest else ''}",
            row.fitting,
            "-" if row.mfu is None else percent(row.mfu),
            "-" if row.step_seconds is None else seconds(row.step_seconds),
            "-" if row.peak_memory_bytes is None else gib(row.peak_memory_bytes),
            row.strategy,
        )
        for row in rows
    ]
    said = f"smallest number of GPUs on which it fits: {smallest}" if smallest else "it fits on none of them"
    return (
        table(shown, ("GPUs", "fitting", "MFU", "step", "peak", "best strategy"), right=(0, 1, 2, 3, 4)) + f"\n\n{said}"
    )


def explanation_text(plan: Plan, explanation: Explanation) -> str:
    """One strategy in detail."""
    prediction, platform = explanation.prediction, plan.question.platform
    strategy = prediction.strategy
    tokens = strategy.global_batch * plan.question.sequence
    lines = [
        f"Strategy {explanation.number}: {strategy}",
        f"  step {seconds(prediction.step_seconds)} for {tokens:,} tokens,"
        f" {tokens / prediction.step_seconds:,.0f} tokens/s",
        f"  MFU {percent(prediction.mfu)} ({plan.question.convention} convention,"
        f" {significant(explanation.flops_per_token / 1e9)} GFLOP a token), HFU {percent(prediction.hfu)}"
        f" (with {significant(explanation.recomputed_flops_per_token / 1e9)} GFLOP a token computed again)",
        f"  peak {significant(platform.peak / 1e12, 4)} TFLOP/s a GPU: {platform.peak_source}",
        f"  fullest rank {prediction.fullest_rank}: {both(prediction.peak_memory_bytes)}"
        f" of {both(platform.memory_bytes)}",
        "",
        _memory_table(explanation),
        "",
        _time_table(explanation),
        "",
        _bubble(explanation),
        "",
        _exchange_table(explanation),
        "",
        "Known, and how:",
        *(f"  {line}" for line in explanation.known),
    ]
    return "\n".join(lines)


def _row(number: int, prediction: Prediction) -> tuple[object, ...]:
    strategy = prediction.strategy
    return (
        number,
        percent(prediction.mfu),
        percent(prediction.hfu),
        seconds(prediction.step_seconds),
        gib(prediction.peak_memory_bytes),
        strategy.pp,
        strategy.ep,
        strategy.dp,
        strategy.tp,
        f"{strategy.microbatches} x {strategy.sequences_per_microbatch}",
        strategy.schedule,
        strategy.checkpointing,
        strategy.zero_stage,
        strategy.alltoall,
        "*" if prediction.pareto else "",
    )


def _shown_ranks(explanation: Explanation) -> list[int]:
    count = len(explanation.rank_bytes)
    if count <= RANKS_SHOWN:
        return list(range(count))
    ends = {0, 1, explanation.prediction.fullest_rank, count // 2, count - 2, count - 1}
    return sorted(ends)


def _memory_table(explanation: Explanation) -> str:
    """Memory in GiB by component; all ranks' totals below where not all have a column."""
    ranks = _shown_ranks(explanation)
    grouped: dict[str, list[float]] = {}
    for name, amounts in explanation.memory.items():
        grouped[name] = [amounts[rank] for rank in ranks]
    rows: list[tuple[object, ...]] = [
        (name, *(f"{amount / 2**30:.3f}" for amount in amounts))
        for name, amounts in grouped.items()
        if max(amounts) >= 2**20
    ]
    rows.append(("total", *(f"{explanation.rank_bytes[rank] / 2**30:.3f}" for rank in ranks)))
    rows.append(("layers", *(explanation.rank_layers[rank] for rank in ranks)))
    rows.append(("microbatches in flight", *(f"{explanation.in_flight[rank]:g}" for rank in ranks)))
    headers = ("memory, GiB", *(f"rank {rank}" for rank in ranks))
    text = table(rows, headers, right=range(1, len(headers)))
    if len(ranks) < len(explanation.rank_bytes):
        every = " ".join(f"{amount / 2**30:.1f}" for amount in explanation.rank_bytes)
        text += f"\nall ranks, GiB: {every}"
    return text


def _time_table(explanation: Explanation) -> str:
    whole = sum(explanation.time.values())
    rows = [(name, seconds(amount), percent(amount / whole)) for name, amount in explanation.time.items()]
    rows.append(("the step", seconds(whole), percent(1.0)))
    return table(rows, ("time of the slowest rank", "seconds", "share"), right=(1, 2))


def _bubble(explanation: Explanation) -> str:
    timeline = explanation.timeline
    if timeline is None or explanation.simulated_step_seconds is None:
        return "The schedule has too many operations to simulate one by one; the closed form above stands alone."
    bubble = timeline.bubble
    return (
        f"From the schedule's own order of operations, over the stages as they are: step"
        f" {seconds(explanation.simulated_step_seconds)} (the ranking takes the slowest stage for all); ranks wait"
        f" {percent(float(bubble.min()))} to {percent(float(bubble.max()))} of the pipeline's time,"
        f" {percent(float(bubble.mean()))} on the mean."
    )


def _exchange_table(explanation: Explanation) -> str:
    if not explanation.exchanges:
        return "Nothing is exchanged between GPUs."
    rows = [
        (each.name, each.ranks, f"{each.bytes_each / 1e6:,.1f}", each.times, seconds(each.seconds), each.known)
        for each in explanation.exchanges
    ]
    headers = ("communication of a GPU", "ranks", "MB each", "times", "a step", "how its time is known")
    return table(rows, headers, right=(1, 2, 3, 4))
