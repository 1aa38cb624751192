"""The memory formulas of the Piper paper as printed (Eq 1 to 5), to reproduce its tables; not to plan with.

They count a SwiGLU expert whatever the model has, treat the batch as global where they divide an
expert's activations by the expert-parallel ranks and as a GPU's own elsewhere, and leave out
dispatch, router, norms and embeddings. ``planner.memory`` has the corrected model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.planner.strategy import Question, Strategy

Number: TypeAlias = "float | np.ndarray"


@dataclass(frozen=True)
class PaperDimensions:
    """The paper's symbols of a model (its Table II): L, d, H, E, f, k."""

    layers: int
    hidden: int
    heads: int
    experts: int
    ffn: int
    top_k: int

    @classmethod
    def from_architecture(cls, architecture: Architecture) -> PaperDimensions:
        """Every layer is taken for one with routed experts, as the paper does."""
        experts = architecture.experts
        return cls(
            layers=len(architecture.layers),
            hidden=architecture.hidden,
            heads=architecture.attention.heads,
            experts=experts.experts,
            ffn=experts.ffn,
            top_k=experts.top_k,
        )


def paper_rank_bytes(question: Question, strategy: Strategy) -> list[float] | None:
    """The paper's memory of each pipeline rank of a strategy (Eq 3; Eq 4 with GPipe), bytes.

    Of the paper's two schedules, 1F1B stands for all but GPipe. What the formula does not have, such as
    checkpointing, has no effect.

    Returns:
        None with tensor parallelism, and of a model without routed experts or without attention.
    """
    try:
        dimensions = PaperDimensions.from_architecture(question.architecture)
    except ValueError:
        return None
    if strategy.tp > 1:
        return None
    return [
        float(
            paper_bytes(
                dimensions,
                question.sequence,
                strategy.sequences_per_gpu,
                flash=question.flash,
                expert_parallel=strategy.ep,
                pipeline_parallel=strategy.pp,
                microbatches=strategy.microbatches,
                stage=None if strategy.schedule == "gpipe" else rank,
            )
        )
        for rank in range(strategy.pp)
    ]


def paper_bytes(
    dimensions: PaperDimensions,
    sequence: int,
    batch: Number,
    *,
    flash: bool = False,
    expert_parallel: Number = 1,
    pipeline_parallel: int = 1,
    microbatches: Number = 1,
    stage: int | None = None,
) -> Number:
    """Bytes on one GPU: Eq 1, with ``expert_parallel`` Eq 2, with ``pipeline_parallel`` Eq 3 and 4.

    ``L / PP * (64 d^2 + 48 E d f / EP + n / M * (12 b s d + 4 H b s^2 + 2 b s k / EP * (3 f + d)))``

    Args:
        dimensions: the model. sequence: s. batch: b.
        flash: ``4 H b s^2`` becomes ``2 H b s``.
        expert_parallel, pipeline_parallel, microbatches: EP, PP, M.
        stage: from 0, with 1F1B, where ``n = PP - stage``; None for GPipe, where ``n = M``.

    Raises:
        ValueError: no such stage.
    """
    if stage is not None and not 0 <= stage < pipeline_parallel:
        raise ValueError(f"there is no stage {stage} of {pipeline_parallel}")
    d, f = dimensions.hidden, dimensions.ffn
    static = 64 * d**2 + 48 * dimensions.experts * d * f / expert_parallel
    scores = 2 * dimensions.heads * batch * sequence * (1 if flash else 2 * sequence)
    routed = 2 * batch * sequence * dimensions.top_k / expert_parallel * (3 * f + d)
    in_flight = microbatches if stage is None else pipeline_parallel - stage
    activations = (12 * batch * sequence * d + scores + routed) * in_flight / microbatches
    return dimensions.layers / pipeline_parallel * (static + activations)
