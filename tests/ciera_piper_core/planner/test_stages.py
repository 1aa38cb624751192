"""Layers of stages and ranks: none lost, none twice, sizes alike, ends in their places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.schedules import SCHEDULES, Schedule
from ciera_piper_core.planner.stages import LayerKinds, end_ranks, stage_of_layer


@given(st.data(), st.integers(1, 130))
def test_stages_share_the_layers_evenly_and_in_order(data: st.DataObject, layers: int) -> None:
    stages = data.draw(st.integers(1, layers))
    held = stage_of_layer(layers, stages)
    sizes = np.bincount(held, minlength=stages)
    assert sizes.sum() == layers
    assert (np.diff(held) >= 0).all()
    assert sizes.max() - sizes.min() <= 1
    # The first stage, or the last one, is never the one with more while others have fewer.
    assert sizes[-1] == sizes.min()


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="4 layers cannot be cut into 5 stages"):
        stage_of_layer(4, 5)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["deepseek-v3", "llama-4-maverick", "switch-base-128"])
def test_ranks_hold_every_layer_once(schedule: Schedule, name: str) -> None:
    architecture = catalogue.load(name)
    kinds = LayerKinds.of(architecture)
    counts = kinds.by_rank(schedule, 4)
    layers = [*architecture.encoder, *architecture.layers, *architecture.mtp]
    assert counts.shape == (4, len(kinds.kinds))
    assert {kind: int(count) for kind, count in zip(kinds.kinds, counts.sum(axis=0), strict=True)} == {
        kind: layers.count(kind) for kind in set(layers)
    }


def test_layers_that_predict_further_tokens_are_on_the_last_stage() -> None:
    architecture = catalogue.load("deepseek-v3")
    assert architecture.mtp
    with_them, without = LayerKinds.of(architecture), LayerKinds.of(architecture, mtp=False)
    more = with_them.by_stage(8).sum(axis=1) - without.by_stage(8).sum(axis=1)
    assert more.tolist() == [0, 0, 0, 0, 0, 0, 0, len(architecture.mtp)]


def test_both_ends_are_on_one_rank_where_the_pipeline_turns() -> None:
    assert end_ranks("1f1b", 4) == (0, 3)
    assert end_ranks("interleaved", 4) == (0, 3)
    assert end_ranks("zbv", 4) == end_ranks("dualpipev", 4) == (0, 0)
