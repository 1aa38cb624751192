"""Tests of reading FSDP2's parameter groups: what the plans say is what FSDP2 gathers, in every kind of group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

from ciera_piper_core.allgather.categories import EMBEDDING, EXPERT_FFN, LAYER_NORM, ROUTING_GATE
from ciera_piper_core.allgather.fsdp_groups import (
    KNOWN_TORCH,
    UnsupportedTorchError,
    current_all_gather,
    is_sharded,
    parameter_groups,
    set_all_gather,
    with_current_dtypes,
)
from ciera_piper_core.exponents.segment import CodingSettings
from tests.ciera_piper_core.allgather.fsdp_training import BYTES, EXPERTS, HIDDEN, Recipe, Training, batch, cpu_mesh
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.allgather.plan import GatherPlan, Segment

SETTINGS = CodingSettings("block", 64)


class Watching(DefaultAllGather):
    """Gathers as FSDP2 does by default, and remembers the type and size of what each rank brought."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.dtype, int]] = []

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        self.seen.append((input_tensor.dtype, input_tensor.numel()))
        return super().__call__(output_tensor, input_tensor, group, async_op)


def segments(plan: GatherPlan) -> dict[str, Segment]:
    """By name."""
    return {segment.name: segment for segment in plan.segments}


def padded(rows: int, columns: int, world: int) -> int:
    """Values of a shard: rows are shared out, and padded to the same number on all ranks."""
    return -(-rows // world) * columns


@pytest.mark.parametrize("world", [2, 3])
def test_plans_are_what_fsdp_gathers(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        training = Training(Recipe(torch.bfloat16), cpu_mesh(world))
        groups = {group.name: group for group in parameter_groups(training.model)}
        assert list(groups) == ["root", "layers.0", "layers.1"]
        watching = {name: Watching() for name in groups}
        for name, group in groups.items():
            assert isinstance(set_all_gather(group, watching[name]), DefaultAllGather)
            assert current_all_gather(group) is watching[name]
        training.step([batch(0, context.group.rank)])
        for name, group in groups.items():
            plan = group.plan(SETTINGS)
            assert set(watching[name].seen) == {(torch.bfloat16, plan.values)}
            assert plan.dtype is group.gathered_dtype is torch.bfloat16
            assert plan.name == name

        root, experts = segments(groups["root"].plan(SETTINGS)), segments(groups["layers.1"].plan(SETTINGS))
        assert set(root) == {"embedding.weight", "norm.weight", "output.weight"}
        assert root["embedding.weight"].values == padded(BYTES, HIDDEN, world)
        assert root["embedding.weight"].category == EMBEDDING
        assert not root["norm.weight"].compressed, "shorter than a block"
        assert root["norm.weight"].category == LAYER_NORM
        up = experts["layers.1.routed_experts.experts.up"]
        assert up.values == padded(EXPERTS, 48 * HIDDEN, world)
        assert up.category == EXPERT_FFN
        assert up.compressed
        assert experts["layers.1.routed_experts.router.weight"].category == ROUTING_GATE

    run_world(world, body, tmp_path)


def test_the_caller_may_overrule_categories_and_selection(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        training = Training(Recipe(torch.float16), cpu_mesh(2))
        root = next(parameter_groups(training.model))
        plan = root.plan(
            SETTINGS,
            category=lambda name, shape: "head" if shape == (BYTES, HIDDEN) and name == "output.weight" else None,
            only=lambda segment: segment.category in ("head", LAYER_NORM),
        )
        assert [segment.category for segment in plan.segments] == [EMBEDDING, LAYER_NORM, "head"]
        assert [segment.name for segment in plan.selected] == ["norm.weight", "output.weight"]

    run_world(2, body, tmp_path)


@pytest.mark.parametrize(
    ("columns", "coded"),
    [
        # Most bytes are float32's, and the other shards are multiples of it.
        (32, {"0.weight": 17 * 24}),
        # The shard of the other weight is an odd number of 2-byte values: that is what can be counted in.
        (33, {"1.weight": 5 * 33}),
    ],
)
def test_parameters_of_several_types(columns: int, coded: dict[str, int], tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(24, 33, bias=False), torch.nn.Linear(columns, 10, bias=False, dtype=torch.bfloat16)
        )
        model.register_parameter("table", torch.nn.Parameter(torch.zeros(6, 2, dtype=torch.int16), requires_grad=False))
        for weight in model[1].parameters():
            weight.requires_grad_(False)
        fully_shard(model, mesh=cpu_mesh(2))
        (group,) = parameter_groups(model)
        watching = Watching()
        set_all_gather(group, watching)
        model.unshard()
        plan = group.plan(SETTINGS)
        assert group.gathered_dtype is torch.uint8
        assert watching.seen == [(torch.uint8, plan.shard_bytes)]
        assert {segment.name: segment.values for segment in plan.selected} == coded

    run_world(2, body, tmp_path)


def test_types_of_which_nothing_can_be_coded(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = torch.nn.Linear(64, 64, dtype=torch.float64)
        fully_shard(model, mesh=cpu_mesh(2))
        (group,) = parameter_groups(model)
        plan = group.plan(SETTINGS)
        assert plan.dtype is torch.float64
        assert plan.selected == ()

    run_world(2, body, tmp_path)


def test_tensors_that_pack_themselves_are_told(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = torch.nn.Linear(64, 64)
        fully_shard(model, mesh=cpu_mesh(2))
        (group,) = parameter_groups(model)
        assert not group.packs_itself
        group.fsdp.fsdp_params[0]._sharded_local_tensor.fsdp_pre_all_gather = lambda mesh: None
        (group,) = parameter_groups(model)
        assert group.packs_itself
        assert [segment.name for segment in group.plan(SETTINGS).selected] == []

    run_world(2, body, tmp_path)


def test_hybrid_sharding_gathers_within_a_row_of_the_mesh(tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = torch.nn.Linear(64, 64)
        fully_shard(model, mesh=mesh)
        (group,) = parameter_groups(model)
        return list(torch.distributed.get_process_group_ranks(group.ranks))

    assert run_world(4, body, tmp_path) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_other_types_are_noticed(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = torch.nn.Linear(64, 64)
        fully_shard(model, mesh=cpu_mesh(2))
        (group,) = parameter_groups(model)
        assert group.gathered_dtype is torch.float32
        model.to(torch.bfloat16)
        model.unshard()
        model.reshard()
        assert with_current_dtypes(group).gathered_dtype is torch.bfloat16

    run_world(2, body, tmp_path)


def test_models_without_fsdp_and_torches_without_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 4)
    assert not is_sharded(model)
    assert list(parameter_groups(model)) == []
    monkeypatch.delattr(FSDPModule, "set_custom_all_gather")
    with pytest.raises(UnsupportedTorchError, match=r"no FSDPModule\.set_custom_all_gather") as raised:
        is_sharded(model)
    assert KNOWN_TORCH[0] in str(raised.value)
    assert torch.__version__ in str(raised.value)


def test_policies_without_a_type_keep_the_parameters_own(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
        fully_shard(model, mesh=cpu_mesh(2), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
        (group,) = parameter_groups(model)
        assert group.gathered_dtype is torch.bfloat16

    run_world(2, body, tmp_path)
