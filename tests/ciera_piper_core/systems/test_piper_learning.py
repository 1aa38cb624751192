"""Piper learns real text, as fast as the plain model: losses of the first steps, validation, unigram entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.scaling import scale
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.piper_ciera import PiperCieraSystem
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.training.batches import Batches
from ciera_piper_core.training.corpus import standard_library
from ciera_piper_core.training.recipe import Recipe
from tests.ciera_piper_core.systems.pipelined_family import all_ranks, built
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem

STEPS, COMPARED, VALIDATED = 120, 20, 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"), [(PiperSystem, {}), (PiperCieraSystem, {"schedule": "zbv"})], ids=["piper", "piper+ciera"]
)
def test_it_learns_text(kind: type[TrainingSystem], options: dict[str, Any], tmp_path: Path) -> None:
    corpus = standard_library()
    recipe = Recipe(
        scale(catalogue.load("mixtral-8x7b"), "tiny"), sequence=64, global_batch=8, microbatches=2, learning_rate=1e-3
    )
    batches = Batches(corpus, recipe)

    def body(context: Context) -> tuple[list[float], list[float], float, float]:
        losses, validation = [], []
        for system in (built(Plain, recipe, all_ranks()), built(kind, recipe, all_ranks(), pp=2, ep=2, **options)):
            of_system = []
            for step in range(STEPS):
                of_system.append(system.accumulate(batches.batch(step)))
                system.update()
            losses.append(of_system)
            validation.append(sum(system.evaluate(batches.validation(piece)) for piece in range(VALIDATED)) / VALIDATED)
            system.close()
        return losses[0], losses[1], validation[0], validation[1]

    expected, got, expected_validation, validation = run_world(4, body, tmp_path, timeout_s=90)[0]
    assert got[:COMPARED] == pytest.approx(expected[:COMPARED], rel=1e-5)
    assert validation == pytest.approx(expected_validation, rel=1e-2)
    assert validation < 0.9 * corpus.unigram_entropy()
