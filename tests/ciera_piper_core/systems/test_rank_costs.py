"""What ranks cost by themselves: how parts follow from shallow models, and which messages they would send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch.distributed as dist

from ciera_piper_core.systems import rank_costs
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.rank_costs import Message, ModelCosts, PartCosts, RankCosts, measure_rank_costs
from ciera_piper_core.systems.system import parse_options
from ciera_piper_core.training.build import empty_model
from tests.ciera_piper_core.systems.pipelined_family import all_ranks, recipe
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

KINDS = 2
"""Of layers; as many shallow models, and one more."""


def test_parts_of_a_model_follow_from_one_and_two_layers() -> None:
    asked = recipe()
    dense, moe = asked.architecture.layers[:2]
    # The dense layer alone, with another of it, with one of experts; all twice as long in one round of three.
    usual = np.array([[5.0, 9.0, 3.0], [6.0, 11.0, 4.0], [8.0, 15.0, 3.5]])
    sent = [{"all_reduce": 1.0}, {"all_reduce": 1.5}, {"all_reduce": 1.75, "all_to_all": 4.0}]
    found = rank_costs._of_model(np.array([usual, 2 * usual, usual]), sent, asked, [dense, moe])
    costs = {
        dense: PartCosts(1, 2, 1, {"all_reduce": 0.5}),
        moe: PartCosts(3, 6, 0.5, {"all_reduce": 0.75, "all_to_all": 4.0}),
    }
    assert found.layers == tuple(costs[layer] for layer in asked.architecture.layers)
    assert found.rest == PartCosts(4, 7, 2, {"all_reduce": 0.5})
    total = found.total
    assert (total.forward, total.backward, total.update) == (4 + 2 * (1 + 3), 7 + 2 * (2 + 6), 2 + 2 * (1 + 0.5))
    assert total.passes == 12 + 23
    assert total.messages == {"all_reduce": 3.0, "all_to_all": 8.0}


def test_noise_makes_nothing_cheaper_than_nothing() -> None:
    assert PartCosts(1, 5, 2, {"a": 1.0}) - PartCosts(2, 3, 2, {"a": 4.0}) == PartCosts(0, 2, 0, {"a": 0.0})


def test_ranks_that_work_together_are_never_quicker() -> None:
    quick, slow = (ModelCosts((), PartCosts(each, each, each)) for each in (1.0, 3.0))
    assert RankCosts(quick, slow).slowdown == 3
    assert RankCosts(slow, quick).slowdown == 1


def test_each_rank_is_measured_for_itself_and_all_know_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_costs, "ROUNDS", 2)

    def body(context: Any) -> Any:
        options, told, groups = parse_options(FSDPSystem, {}), [], len(dist.distributed_c10d._world.pg_map)
        costs = measure_rank_costs(
            FSDPSystem, recipe(), all_ranks(), options, 2, lambda message: message.size, alive=lambda: told.append(1)
        )
        return costs, len(told), len(dist.distributed_c10d._world.pg_map) - groups

    (first, told, left), (second, others_told, others_left) = run_world(2, body, tmp_path)
    assert first == second
    for costs in (first.alone, first.together):
        assert costs.total.forward > 1e-4
        assert costs.total.backward > 1e-4
        assert costs.total.update > 1e-5
    # Rank 0 once more, alone.
    steps = (KINDS + 1) * (2 + rank_costs.UNTIMED)
    assert (told, others_told) == (2 * steps, steps)
    assert left == others_left == 0


def sent(tmp_path: Path, system: Any, width: int, **options: str) -> dict[tuple[str, int], float]:
    """Bytes of a step's messages of a whole model, by kind and ranks, as the shallow models have them."""

    def body(context: Any) -> Any:
        ranks, asked = all_ranks(), recipe(microbatches=2)
        found: dict[tuple[str, int], float] = {}
        built = system(
            asked,
            rank_costs.Ranks(
                rank_costs._silent_group(ranks, width), rank_costs.even_placement(width, width), ranks.device
            ),
            parse_options(system, options),
        )

        def add(message: Message) -> float:
            key = (message.kind, len(message.ranks))
            found[key] = found.get(key, 0.0) + message.size
            return 0.0

        from tests.ciera_piper_core.systems.pipelined_family import batch

        rank_costs._messages(built, batch(0), add)
        built.close()
        return found

    found: dict[tuple[str, int], float] = run_world(4, body, tmp_path)[0]
    return found


def test_messages_are_those_of_the_whole_system(tmp_path: Path) -> None:
    weights = 4 * sum(weight.numel() for weight in empty_model(recipe(), device="meta").parameters())
    found = sent(tmp_path, FSDPSystem, 4)
    # Layers are gathered for both passes of two microbatches, the rest once for both, and all is reduced once.
    assert 2 * weights < found["all_gather", 4] < 4 * weights
    assert found["reduce_scatter", 4] == pytest.approx(weights, rel=0.01)
    assert found["all_reduce", 4] == 16


def test_a_stage_of_a_pipeline_exchanges_tokens_within_it(tmp_path: Path) -> None:
    found = sent(tmp_path, PiperSystem, 2, pp="1", ep="2")
    assert {ranks for _, ranks in found} == {2}
    tokens, choices, layers, passes = 2 * 24, 2, 2, 4
    rows = 4 * 32 * choices * tokens * layers * passes * 2
    # Rows there and back in both passes of two microbatches; with them records and counts.
    assert found["all_to_all", 2] == pytest.approx(rows, rel=0.2)
    assert found["all_to_all", 2] > rows
