"""What would help where nothing fits: only what can still be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciera_piper_core.planner.strategy import Question, Strategy

LEANER_OPTIMIZERS = ("adam", "sgd_momentum")
"""Those for which another keeps less state."""


def advice_without_gpus(question: Question, strategy: Strategy, dominant: str) -> tuple[str, ...]:
    """What would make the nearest strategy smaller on the same GPUs, the most useful first.

    The strategy already has the least memory of all that the question allows, so what the search varies
    helps only where the question holds it at a value.

    Args:
        dominant: the group of its memory that takes most.
    """
    found = []
    if dominant in ("activations", "working memory"):
        if question.sequence > 1:
            found.append("shorter sequences")
        if strategy.sequences_per_microbatch > 1:
            found.append("fewer sequences in a microbatch")
        if dominant == "activations" and strategy.checkpointing != "full":
            found.append("full checkpointing")
        if dominant == "working memory" and not question.flash:
            found.append("fused attention")
    if dominant.startswith("state of ") or dominant == "gathered weights":
        if question.optimizer in LEANER_OPTIMIZERS:
            found.append("an optimizer with less state")
        routed = dominant == "state of routed experts"
        if not routed and "zero_stage" in question.only and strategy.zero_stage < 3 and strategy.ep * strategy.dp > 1:
            found.append("a higher ZeRO stage")
    held = [name for name in ("pp", "ep", "dp", "tp", "schedule", "microbatches") if name in question.only]
    if held and dominant != "framework overhead":
        found.append(f"other values of {', '.join(held)} than --set allows")
    return tuple(found)


def advice_with_gpus(dominant: str) -> str:
    """What more GPUs would do, where the model fits on more."""
    if dominant == "state of routed experts":
        return "more GPUs, so that PP x EP can grow"
    if dominant.startswith("state of "):
        return "more GPUs, so that PP or TP can grow"
    return "more GPUs"
