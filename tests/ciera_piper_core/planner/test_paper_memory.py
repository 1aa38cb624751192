"""Tests of the paper's formulas: against its own numbers and against each other."""

from __future__ import annotations

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.paper_memory import PaperDimensions, paper_bytes, paper_rank_bytes
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.platforms import load_platform

MIXTRAL = PaperDimensions(layers=32, hidden=4096, heads=32, experts=8, ffn=14336, top_k=2)


def test_whole_model_term_by_term() -> None:
    static = 64 * 4096**2 + 48 * 8 * 4096 * 14336
    tokens = 3 * 2048
    activations = 12 * tokens * 4096 + 4 * 32 * tokens * 2048 + 2 * tokens * 2 * (3 * 14336 + 4096)
    assert paper_bytes(MIXTRAL, 2048, 3) == 32 * (static + activations)
    saved = paper_bytes(MIXTRAL, 2048, 3) - paper_bytes(MIXTRAL, 2048, 3, flash=True)
    assert saved == 32 * 2 * 32 * tokens * (2 * 2048 - 1)


def test_a_pipeline_of_one_stage_and_one_microbatch_is_the_whole_model() -> None:
    for stage in (0, None):
        assert paper_bytes(MIXTRAL, 2048, 3, stage=stage) == paper_bytes(MIXTRAL, 2048, 3)


def test_gpipe_holds_all_microbatches_and_1f1b_as_many_as_stages_follow() -> None:
    options = {"expert_parallel": 8, "pipeline_parallel": 4, "microbatches": 16}
    empty = paper_bytes(MIXTRAL, 2048, 0, **options)
    stages = [paper_bytes(MIXTRAL, 2048, 16, stage=stage, **options) - empty for stage in range(4)]
    # The first stage holds PP times what the last one holds: the difference is PP - 1 times (Eq 5).
    assert stages == pytest.approx([4 * stages[3], 3 * stages[3], 2 * stages[3], stages[3]])
    assert paper_bytes(MIXTRAL, 2048, 16, **options) - empty == pytest.approx(16 * stages[3])
    with pytest.raises(ValueError, match="there is no stage 4 of 4"):
        paper_bytes(MIXTRAL, 2048, 1, stage=4, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("schedule", "stage"), [("1f1b", 1), ("zbv", 1), ("gpipe", None)])
def test_a_strategys_ranks_follow_the_formula(schedule: str, stage: int | None) -> None:
    question = Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 16)
    strategy = Strategy(2, 8, 1, 1, 4, 8, schedule, "full", 1, "flat")
    ranks = paper_rank_bytes(question, strategy)
    assert ranks is not None
    assert ranks[1] == paper_bytes(
        MIXTRAL, 4096, 8, flash=True, expert_parallel=8, pipeline_parallel=2, microbatches=4, stage=stage
    )
    assert (ranks[0] > ranks[1]) == (schedule != "gpipe")


def test_the_formula_has_no_tensor_parallelism() -> None:
    question = Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 16)
    assert paper_rank_bytes(question, Strategy(1, 8, 1, 2, 4, 8, "1f1b", "full", 1, "flat")) is None
