"""Selection ``auto``: the same on all ranks, whatever each of them believes, from rates or from a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.allgather.change_trace import ChangeTrace, GatherChanges, ShardChanges
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan, Segment
from ciera_piper_core.allgather.selection import ChangeRates, plan_traffic, select
from tests.ciera_piper_core.allgather.gain_cases import model
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

MIB = 1 << 20


def plan(*sizes: tuple[str, int], name: str = "layer", **settings: Any) -> GatherPlan:
    return GatherPlan.from_sizes(sizes, torch.bfloat16, CodingSettings(**settings), name=name)


def trace(values: int = MIB, name: str = "layer", **series: tuple[int, ...]) -> ChangeTrace:
    shards = tuple(ShardChanges(key, "other", values, (1,) * len(coded), coded) for key, coded in series.items())
    return ChangeTrace(4, "made up", (GatherChanges(name, "bfloat16", 512, "auto", shards),))


def selected(plans: tuple[GatherPlan, ...]) -> list[list[str]]:
    return [[segment.name for segment in each.selected] for each in plans]


def test_alone_a_process_decides_for_itself() -> None:
    plans, selection = select([plan(("large", MIB), ("none", 0))], ChangeRates(0.001), model())
    assert selected(plans) == [["large"]]
    assert selection.selected == {("layer", "large")}


def test_a_fast_network_selects_nothing() -> None:
    plans, selection = select([plan(("large", MIB))], ChangeRates(0.001), model(bytes_s=1e12))
    assert selected(plans) == [[]]
    assert selection.gathers[0].predicted_s == selection.gathers[0].plain_s


def test_the_budget_is_of_all_plans_together() -> None:
    plans = [plan(("w", MIB), name=name) for name in ("a", "b", "c")]
    chosen, selection = select(plans, ChangeRates(0.0), model(), budget_bytes=9 * MIB)
    assert sum(len(each) for each in selected(chosen)) == 2
    assert selection.cache_bytes == 8 * MIB


def test_rates_are_by_category() -> None:
    segments = (Segment("expert", 0, MIB, "expert FFN"), Segment("router", MIB, MIB, "routing gate"))
    rates = ChangeRates(0.001, {"routing gate": 0.5}, unchanged_gathers=1)
    carried = plan_traffic(GatherPlan(segments, torch.bfloat16, name="layer"), rates)
    expert, router = carried.shards
    assert router.coded_bytes[0] > 10 * expert.coded_bytes[0]
    assert router.changed.tolist()[1:] == [0.0]


@pytest.mark.parametrize("rates", [{"elements": 1.5}, {"elements": 0.1, "by_category": {"x": -1.0}}])
def test_rates_that_cannot_be_are_refused(rates: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="change rate must be from 0 to 1"):
        ChangeRates(**rates)
    with pytest.raises(ValueError, match="unchanged gathers"):
        ChangeRates(0.1, unchanged_gathers=-1)


def test_a_trace_is_scaled_to_the_shard() -> None:
    carried = plan_traffic(plan(("w", MIB // 2)), trace(MIB, w=(1000, 0)))
    (one,) = carried.shards
    assert one.values == MIB // 2
    assert one.coded_bytes.tolist() == [500.0, 0.0]


def test_what_the_trace_does_not_have_counts_as_all_changed() -> None:
    carried = plan_traffic(plan(("w", MIB), ("new", MIB)), trace(MIB, w=(1000, 0)))
    known, unknown = carried.shards
    assert known.coded_bytes.tolist() == [1000.0, 0.0]
    assert unknown.changed.tolist() == [1.0, 1.0]
    assert unknown.coded_bytes[1] > MIB / 4
    (other,) = plan_traffic(plan(("w", MIB), name="another"), trace(MIB, w=(1000, 0))).shards
    assert other.changed.tolist() == [1.0]


def test_ranks_decide_as_the_first_from_the_largest_shard(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[Any, ...]:
        rank = context.group.rank
        # Rank 0's own shard is empty; and only rank 0 has measured a network on which compressing pays.
        mine = [plan(("w", 0 if rank == 0 else MIB), ("small", 16)), plan(("w", MIB), name="second")]
        measured = model(bytes_s=1e8 if rank == 0 else 1e12)
        plans, selection = select(mine, ChangeRates(0.001 * (1 + rank)), measured, group=context.group.data)
        assert [each.values for each in plans] == [each.values for each in mine]
        return selected(plans), sorted(selection.selected), selection.gathers[0].plain_s

    ranks = run_world(3, body, tmp_path)
    assert ranks[0] == ranks[1] == ranks[2]
    assert ranks[0][0][0][0] == "w"
    assert ranks[0][0][1] == ["w"]


def test_what_is_wrong_on_the_first_rank_is_raised_on_all(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        budget = -1 if context.group.rank == 0 else None
        with pytest.raises(ValueError, match="cache budget") as caught:
            select([plan(("w", MIB))], ChangeRates(0.0), model(), budget, context.group.data)
        return str(caught.value)

    ranks = run_world(2, body, tmp_path)
    assert ranks[0] == ranks[1]


def test_other_segments_on_another_rank_are_refused_on_all(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        names = [("w", MIB)] if context.group.rank else [("w", MIB), ("v", MIB)]
        with pytest.raises(ValueError, match="different segments"):
            select([plan(*names)], ChangeRates(0.0), model(), group=context.group.data)

    run_world(2, body, tmp_path)
