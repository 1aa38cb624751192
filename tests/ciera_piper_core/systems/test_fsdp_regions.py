"""Tests of the regions around FSDP2's gathers and reductions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.allgather.fsdp_groups import UnsupportedTorchError
from ciera_piper_core.ranges import recording
from ciera_piper_core.systems import fsdp_regions
from ciera_piper_core.systems.fsdp import FSDPSystem
from tests.ciera_piper_core.systems.fsdp_family import all_ranks, built, recipe, trained
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_gathers_and_reductions_are_marked(tmp_path: Path) -> None:
    def body(context: Context) -> Counter[str]:
        system = built(FSDPSystem, recipe(), all_ranks(2))
        trained(system, 1)
        with recording() as spans:
            trained(system, 1, first=1)
        return Counter(span.name for span in spans)

    for counts in run_world(2, body, tmp_path):
        # Three groups; each layer's parameters are asked for and waited for in both passes.
        assert counts["parameter_gather"] >= 2 * 5
        assert counts["gradient_reduce"] >= 3
        # Gradients are handed over, then the update.
        assert counts["optimizer"] == 2
        assert counts["loss"] >= 2


@pytest.mark.parametrize("steps", ["STEPS", "STEPS_OF_MODULE"])
def test_another_torch_is_refused_by_name(steps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp_regions, steps, {"unheard_of": "parameter_gather"})

    def body(context: Context) -> None:
        with pytest.raises(UnsupportedTorchError, match="unheard_of"):
            built(FSDPSystem, recipe(), all_ranks(1))

    run_world(1, body, tmp_path)


def test_hooks_that_are_not_found_are_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp_regions, "_is_of", lambda state, hook: False)

    def body(context: Context) -> None:
        with pytest.raises(UnsupportedTorchError, match="_forward_pre_hooks"):
            built(FSDPSystem, recipe(), all_ranks(1))

    run_world(1, body, tmp_path)


def test_a_model_that_is_not_sharded_has_nothing_to_mark() -> None:
    fsdp_regions.mark_regions(torch.nn.Linear(2, 2))
