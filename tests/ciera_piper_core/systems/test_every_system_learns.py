"""Every system learns real text as the plain model does: losses of the first steps, validation, unigram entropy."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from ciera_piper_core.systems import load_system
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.training.batches import Batches
from tests.ciera_piper_core.systems.every_system import WORLDS, built, named
from tests.ciera_piper_core.systems.expert_family import recipe
from tests.ciera_piper_core.training.small_recipe import one_rank, text
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem

STEPS, COMPARED, VALIDATED = 200, 20, 4
RECIPE = recipe(microbatches=2, learning_rate=3e-3)


def losses_and_validation(system: TrainingSystem) -> tuple[list[float], float]:
    """Of each step, and at the end."""
    batches, losses = Batches(text(), RECIPE), []
    for step in range(STEPS):
        losses.append(system.accumulate(batches.batch(step)))
        system.update()
    return losses, sum(system.evaluate(batches.validation(piece)) for piece in range(VALIDATED)) / VALIDATED


@cache
def plain() -> tuple[list[float], float]:
    """The same by the plain model in one process."""
    return losses_and_validation(Plain(RECIPE, one_rank(), {}))


@pytest.mark.slow
@pytest.mark.parametrize("label", [label for label in WORLDS if label != "plain"])
def test_it_learns_text_as_the_plain_model_does(label: str, tmp_path: Path) -> None:
    kind = load_system(named(label))
    tolerance = load_system(kind.exact_as).loss_tolerance if kind.exact_as else kind.loss_tolerance
    expected, expected_validation = plain()

    def body(context: Context) -> tuple[list[float], float]:
        system = built(label, context, RECIPE)
        found = losses_and_validation(system)
        system.close()
        return found

    losses, validation = run_world(WORLDS[label], body, tmp_path, timeout_s=240)[0]
    assert losses[:COMPARED] == pytest.approx(expected[:COMPARED], rel=tolerance)
    assert validation == pytest.approx(expected_validation, rel=1e-2)
    assert validation < 0.9 * text().unigram_entropy()
