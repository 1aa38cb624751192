"""A plan as text: the ranked table, one strategy in detail, what was ruled out and what nearly fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.planner.candidates import CONSTRAINTS
from ciera_piper_core.planner.formatting import billions, both, gib, percent, seconds, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ciera_piper_core.planner.explain import Explanation
    from ciera_piper_core.planner.fitting import Smallest
    from ciera_piper_core.planner.range import RangeRow
    from ciera_piper_core.planner.search import NearestMiss, Plan, Prediction
    from ciera_piper_core.planner.strategy import Question

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
    published = question.architecture.active_params_billion
    beside = "" if published is None else f"; published: {published:g} B active"
    lines = [
        f"{question.architecture.name} ({billions(parameters.total)} parameters, {billions(parameters.active)} active"
        f" with embedding and output{beside})"
        f" on {question.gpus} x {platform.device} of {platform.name}, {both(platform.memory_bytes)} each",
        f"sequence {question.sequence}, {question.batch_rule}",
        f"{question.optimizer}, {question.precision}, {'fused' if question.flash else 'unfused'} attention,"
        f" routing {question.routing_text}, {question.placement} expert placement",
        f"MFU: {question.convention} convention, {significant(plan.estimator.flops_per_token / 1e9)} GFLOP a token"
        f" forward and backward, against {significant(platform.peak / 1e12, 4)} TFLOP/s a GPU ({platform.peak_source})",
        f"measured on this platform: {measured}; everything else is specified or assumed (--explain says which)",
    ]
    if platform.settling:
        lines.append(f"{platform.settling}; `bench characterize --preset standard` settles more")
    return lines


def ranking(plan: Plan, top: int) -> str:
    """The best strategies as a table."""
    shown = plan.top(top)
    rows = [_row(number, prediction) for number, prediction in enumerate(shown, start=1)]
    note = f"{len(plan)} of {plan.evaluated} estimated strategies fit; * on the Pareto front of MFU and memory"
    if not all(prediction.simulated for prediction in shown):
        note += "; ~ step estimated for equal stages, not simulated"
    return table(rows, HEADERS, right=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12)) + "\n\n" + note


def rejections(plan: Plan) -> str:
    """How many strategies each constraint ruled out."""
    rows = [(name, f"{count:,}", CONSTRAINTS[name]) for name, count in plan.rejected.items()]
    return table(rows, ("ruled out by", "strategies", "the constraint"), right=(1,)) if rows else ""


def nothing_fits(plan: Plan, smallest: Smallest | None) -> str:
    """Why there is no strategy, and what would help."""
    question = plan.question
    gpus = "1 GPU" if question.gpus == 1 else f"{question.gpus} GPUs"
    lines = [f"No strategy fits {question.architecture.name} on {gpus} of {question.platform.name}."]
    if plan.nearest_miss is not None:
        lines += _miss(plan.nearest_miss, smallest is not None and smallest.gpus > question.gpus)
    elif not plan.evaluated:
        lines.append("No strategy passes the constraints that come before memory; the table says which.")
    else:
        lines.append("Some fit into memory, but another constraint rules each of them out; the table says which.")
    if smallest is not None:
        free = ", with any PP, EP, DP and TP" if question.only.keys() & {"pp", "ep", "dp", "tp"} else ""
        lines.append(f"The smallest number of GPUs that would do{free}: {smallest}{_steps(question, smallest)}.")
    else:
        lines.append(
            f"None of the numbers of GPUs that were tried, up to the platform's {question.platform.max_gpus}, would do"
            " with these settings."
        )
    return "\n".join(lines)


def _steps(question: Question, smallest: Smallest) -> str:
    """Which numbers the smallest is the smallest of."""
    return ", in whole nodes" if smallest.gpus > question.platform.gpus_per_node > 1 else ""


def _miss(miss: NearestMiss, fits_on_more: bool) -> list[str]:
    return [
        f"Nearest: {miss.strategy}.",
        f"Its fullest pipeline rank, {miss.fullest_rank}, would need {both(miss.peak_memory_bytes)} of"
        f" {both(miss.memory_bytes)}: {both(miss.over_bytes)} too much.",
        f"Most of it is the {miss.dominant}, {both(miss.dominant_bytes)}. What helps: {miss.helps(fits_on_more)}.",
    ]


def range_table(rows: Iterable[RangeRow], smallest: Smallest | None) -> str:
    """The best strategy on each number of GPUs."""
    shown = [
        (
            f"{row.gpus}{' <' if smallest and row.gpus == smallest.gpus else ''}",
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
        *_beside(explanation),
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
        ("" if prediction.simulated else "~") + seconds(prediction.step_seconds),
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
    source = ", as ranked" if explanation.prediction.simulated else " (the ranking has an estimate for equal stages)"
    return (
        f"From the schedule's own order of operations, over the stages as they are: step"
        f" {seconds(explanation.simulated_step_seconds)}{source}; ranks wait"
        f" {percent(float(bubble.min()))} to {percent(float(bubble.max()))} of the pipeline's time,"
        f" {percent(float(bubble.mean()))} on the mean."
    )


def _beside(explanation: Explanation) -> list[str]:
    """The paper's memory of this strategy, and what moving its experts would cost."""
    lines = []
    if explanation.paper_rank_bytes is not None:
        ranks = _shown_ranks(explanation)
        shown = ", ".join(f"rank {rank} {explanation.paper_rank_bytes[rank] / 2**30:.3f}" for rank in ranks)
        lines += [
            f"The Piper paper's formula (Eq 3 and 4) in place of ours, GiB: {shown}. It has 1F1B or GPipe, three"
            " matrices an expert, and no embedding, output, checkpointing, ZeRO, TP or working memory.",
            "",
        ]
    cost = explanation.migration
    if cost is not None:
        lines += [
            f"Moving all experts of a layer between the {cost.gpus} GPUs of an expert-parallel group, at worst:"
            f" {both(cost.bytes_per_gpu)} a GPU, {seconds(cost.seconds)} a layer at {cost.bandwidth_bytes_s / 1e9:.3g}"
            f" GB/s a GPU ({cost.bytes_per_parameter:.3g} bytes a parameter; {seconds(cost.expected_seconds)} if the"
            " new places are random).",
            "",
        ]
    return lines


def _exchange_table(explanation: Explanation) -> str:
    if not explanation.exchanges:
        return "Nothing is exchanged between GPUs."
    rows = [
        (each.name, each.ranks, f"{each.bytes_each / 1e6:,.1f}", each.times, seconds(each.seconds), each.known)
        for each in explanation.exchanges
    ]
    headers = ("communication of a GPU", "ranks", "MB each", "times", "a step", "how its time is known")
    return table(rows, headers, right=(1, 2, 3, 4))
