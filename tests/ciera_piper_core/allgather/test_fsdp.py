"""Tests of compressed gathers under FSDP2: each way to use FSDP2 in a few steps, and what a user may ask for."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Shard

from ciera_piper_core.allgather.categories import CATEGORIES
from ciera_piper_core.allgather.fsdp import CompressedModel, compress_all_gathers
from ciera_piper_core.allgather.fsdp_groups import current_all_gather, parameter_groups
from ciera_piper_core.exponents.segment import CodingSettings
from ciera_piper_core.ranges import recording
from tests.ciera_piper_core.allgather.fsdp_training import Recipe, Training, batch, cpu_mesh, differing, same_bits
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

BF16 = Recipe(torch.bfloat16)
SMALL_BLOCKS = CodingSettings("auto", 64)
GROUPS = ("root", "layers.0", "layers.1")


def pair(recipe: Recipe, mesh: DeviceMesh, **options: Any) -> tuple[Training, Training, CompressedModel]:
    """The same training twice, the second with compressed gathers."""
    plain, compressed = Training(recipe, mesh), Training(recipe, mesh)
    return plain, compressed, compress_all_gathers(compressed.model, SMALL_BLOCKS, **options)


def train_alike(plain: Training, compressed: Training, rank: int, steps: int, first: int = 0) -> None:
    """Train both, and compare every bit."""
    for step in range(first, first + steps):
        batches = [batch(step, rank)]
        expected, got = plain.step(batches), compressed.step(batches)
        assert all(map(same_bits, got, expected)), f"step {step}: losses {got}, not {expected}"
        assert differing(plain, compressed) == [], f"step {step}"


def kinds(handle: CompressedModel) -> dict[str, dict[str, int]]:
    """By group, gathers by kind; those that there were."""
    return {
        name: {kind: count for kind, count in one.gathers.items() if count} for name, one in handle.statistics.items()
    }


def one_linear(world: int, dtype: torch.dtype = torch.bfloat16, size: int = 256) -> FSDPModule:
    """One sharded matrix."""
    generator = torch.Generator().manual_seed(1)
    model = torch.nn.Linear(size, size, bias=False)
    with torch.no_grad():
        model.weight.normal_(std=0.02, generator=generator)
    return fully_shard(model, mesh=cpu_mesh(world), mp_policy=MixedPrecisionPolicy(param_dtype=dtype))


def gathered(model: FSDPModule) -> torch.Tensor:
    """Bits of the whole matrix, gathered anew."""
    model.unshard()
    bits = model.weight.detach().clone().view(torch.int16)  # type: ignore[union-attr, operator]
    model.reshard()
    return bits


@pytest.mark.parametrize("reshard", [True, False])
def test_a_few_steps(reshard: bool, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(Recipe(torch.bfloat16, reshard=reshard), cpu_mesh(2))
        train_alike(plain, compressed, context.group.rank, steps=4)
        # The first of a group is plain; with resharding there are two a step.
        assert kinds(handle) == {name: {"refresh": 1, "coded": 7 if reshard else 3} for name in GROUPS}
        for name, one in handle.statistics.items():
            assert list(one.segments) == [segment.name for segment in handle.plans[name].segments]
        last = handle.statistics["layers.0"].last
        assert last is not None
        unchanged = all(segment.changed_blocks == 0 for segment in last.segments)
        assert unchanged == reshard, "the backward pass finds what the forward pass found"
        categories = handle.categories
        assert set(categories) == set(CATEGORIES) - {"other"}
        assert not categories["layer norm"].compressed, "shorter than a block"
        experts = categories["expert FFN"]
        assert experts.gathers == 6 * (7 if reshard else 3), "a gather of each of six matrices"
        assert 0 < experts.block_change_rate < 1
        handle.remove()

    run_world(2, body, tmp_path)


def test_a_gather_that_finds_nothing_changed_sends_half(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = one_linear(2, size=1024)
        handle = compress_all_gathers(model)  # type: ignore[arg-type]
        expected = gathered(model)
        for _ in range(6):
            assert torch.equal(gathered(model), expected)
        last = handle.statistics["root"].last
        assert last is not None
        assert last.sent_bytes <= 0.505 * last.plain_bytes
        # A cache of the other rank's exponents, and of one's own for the differences.
        assert handle.state_bytes == 2 * 1024 * 512
        handle.remove()

    run_world(2, body, tmp_path)


def test_resharding_to_fewer_ranks_gathers_plain_among_them(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(Recipe(torch.bfloat16, reshard=2), cpu_mesh(4))
        train_alike(plain, compressed, context.group.rank, steps=3)
        once_a_step = {"refresh": 1, "coded": 2, "plain": 3}
        assert kinds(handle) == {"root": {"refresh": 1, "coded": 5}, "layers.0": once_a_step, "layers.1": once_a_step}
        handle.remove()

    run_world(4, body, tmp_path)


def test_hybrid_sharding(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        plain, compressed, handle = pair(BF16, mesh)
        train_alike(plain, compressed, context.group.rank, steps=3)
        assert kinds(handle) == {name: {"refresh": 1, "coded": 5} for name in GROUPS}
        handle.remove()

    run_world(4, body, tmp_path)


def test_recomputed_activations(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(Recipe(torch.float16, recompute=True), cpu_mesh(3))
        train_alike(plain, compressed, context.group.rank, steps=3)
        handle.remove()

    run_world(3, body, tmp_path)


def test_prefetched_gathers_are_in_flight_together(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        layers = list(compressed.model.layers.values())
        compressed.root.set_modules_to_forward_prefetch(layers)
        compressed.root.set_modules_to_backward_prefetch(layers[::-1])
        train_alike(plain, compressed, context.group.rank, steps=3)
        with torch.no_grad():
            pending = [layer.unshard(async_op=True) for layer in layers]
            for each in pending:
                each.wait()
        compressed.root.reset_iter_state()
        train_alike(plain, compressed, context.group.rank, steps=2, first=3)
        handle.remove()

    run_world(2, body, tmp_path)


def test_coding_and_collectives_run_while_the_program_does_something_else(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = one_linear(2)
        handle = compress_all_gathers(model, SMALL_BLOCKS)  # type: ignore[arg-type]
        expected = gathered(model)
        gathered(model)
        with recording() as spans:
            pending = model.unshard(async_op=True)
            deadline = time.monotonic() + 20
            while len(spans) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            before = list(spans)
            pending.wait()  # type: ignore[union-attr]
        assert torch.equal(model.weight.detach().view(torch.int16), expected)  # type: ignore[union-attr, operator]
        mine = threading.get_ident()
        assert {span.name: span.thread == mine for span in before} == {
            "allgather.encode": False,
            "allgather.collective": False,
        }
        assert [(span.name, span.thread == mine) for span in spans[2:]] == [("allgather.decode", True)]
        handle.remove()

    run_world(2, body, tmp_path)


def test_gathers_ahead_of_time_leave_the_programs_thread(tmp_path: Path) -> None:
    """In the backward pass, where FSDP2 prefetches; what a module waits for at once needs no other thread."""

    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        train_alike(plain, compressed, context.group.rank, steps=2)
        with recording() as spans:
            train_alike(plain, compressed, context.group.rank, steps=1, first=2)
        mine = threading.get_ident()
        coded = [span for span in spans if span.name == "allgather.encode"]
        # Forward: root and both layers. Backward: the root, then each layer while the one above it computes.
        assert [span.thread == mine for span in sorted(coded, key=lambda span: span.start_ns)] == 4 * [True] + 2 * [
            False
        ]
        assert {span.thread == mine for span in spans if span.name == "allgather.decode"} == {True}
        handle.remove()

    run_world(2, body, tmp_path)


def test_parameters_that_are_sharded_over_other_ranks_than_their_modules(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        def sharded() -> torch.nn.Module:
            generator = torch.Generator().manual_seed(context.group.rank // 2)
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
            for weight in model.parameters():
                weight.data.normal_(generator=generator)
            experts = set(model[1].parameters())
            whole, halves = cpu_mesh(4), init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "half"))
            among = {True: FSDPMeshInfo(halves["half"], 0), False: FSDPMeshInfo(whole, 0)}
            return fully_shard(
                model,
                mesh=whole,
                shard_placement_fn=lambda weight: ShardPlacementResult(Shard(0), among[weight in experts]),
            )

        plain, compressed = sharded(), sharded()
        handle = compress_all_gathers(compressed, SMALL_BLOCKS)
        assert list(handle.plans) == ["root", "root [2]"]
        for _ in range(3):
            for model in (plain, compressed):
                model.unshard()  # type: ignore[operator]
            for expected, got in zip(plain.parameters(), compressed.parameters(), strict=True):
                assert same_bits(got.detach(), expected.detach())
            for model in (plain, compressed):
                model.reshard()  # type: ignore[operator]
        assert kinds(handle) == {name: {"refresh": 1, "coded": 2} for name in handle.plans}
        handle.remove()
        assert all(type(current_all_gather(one)) is DefaultAllGather for one in parameter_groups(compressed))

    run_world(4, body, tmp_path)


def test_gathers_that_nobody_waits_for(tmp_path: Path) -> None:
    """A prefetch that misses its module is waited for, and dropped, at the end of the backward pass."""

    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        train_alike(plain, compressed, context.group.rank, steps=1)
        list(compressed.model.layers.values())[1].unshard(async_op=True)
        compressed.root.reset_iter_state()
        train_alike(plain, compressed, context.group.rank, steps=2, first=1)
        handle.remove()

    run_world(2, body, tmp_path)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_before_and_between_steps(mode: Any, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        for step in range(3):
            tokens = batch(step, context.group.rank)[0]
            with mode():
                expected, got = plain.model(tokens), compressed.model(tokens)
                assert same_bits(got.float(), expected.float())
            for training in (plain, compressed):
                training.root.reset_iter_state()
            if mode is torch.no_grad:
                train_alike(plain, compressed, context.group.rank, steps=1, first=step)
        handle.remove()

    run_world(2, body, tmp_path)


def test_loading_a_state_makes_the_next_gathers_full_ones(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        kept = {name: value.clone() for name, value in plain.model.state_dict().items()}
        train_alike(plain, compressed, context.group.rank, steps=2)
        before = kinds(handle)
        for training in (plain, compressed):
            training.model.load_state_dict(kept)
        train_alike(plain, compressed, context.group.rank, steps=1, first=2)
        after = kinds(handle)
        assert all(after[name]["refresh"] == before[name]["refresh"] + 1 for name in GROUPS)
        # Also where only one rank forgets.
        if context.group.rank == 1:
            handle.reset()
        train_alike(plain, compressed, context.group.rank, steps=1, first=3)
        assert all(kinds(handle)[name]["refresh"] == after[name]["refresh"] + 1 for name in GROUPS)
        handle.remove()

    run_world(2, body, tmp_path)


def test_another_type_begins_anew(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        model = torch.nn.Linear(64, 64, bias=False)
        fully_shard(model, mesh=cpu_mesh(2))
        handle = compress_all_gathers(model, SMALL_BLOCKS)
        assert handle.plans["root"].dtype is torch.float32
        model.to(torch.bfloat16)
        whole = model.weight.full_tensor()  # type: ignore[operator]
        for _ in range(3):
            model.unshard()
            assert torch.equal(model.weight.view(torch.int16), whole.view(torch.int16))
            model.reshard()
        assert handle.plans["root"].dtype is torch.bfloat16
        assert kinds(handle) == {"root": {"refresh": 1, "coded": 2}}
        handle.remove()

    run_world(2, body, tmp_path)


def test_parameters_of_several_types_are_gathered_as_bytes(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        generator = torch.Generator().manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(24, 33), torch.nn.Linear(33, 10, dtype=torch.bfloat16))
        for weight in model.parameters():
            weight.data.normal_(generator=generator)
        model[1].requires_grad_(False)
        whole = [weight.detach().clone() for weight in model.parameters()]
        fully_shard(model, mesh=cpu_mesh(2))
        handle = compress_all_gathers(model, SMALL_BLOCKS)
        for _ in range(3):
            model.unshard()
            for weight, expected in zip(model.parameters(), whole, strict=True):
                assert torch.equal(weight.detach().view(torch.uint8), expected.view(torch.uint8))
            model.reshard()
        assert [segment.name for segment in handle.plans["root"].selected] == ["1.weight"]
        assert kinds(handle) == {"root": {"refresh": 1, "coded": 2}}
        handle.remove()

    run_world(2, body, tmp_path)


def test_each_parameter_has_its_own_decision(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2), only=lambda segment: segment.category == "expert FFN")
        train_alike(plain, compressed, context.group.rank, steps=2)
        assert kinds(handle) == {
            "root": {"plain": 4},
            "layers.0": {"plain": 4},
            "layers.1": {"refresh": 1, "coded": 3},
        }
        chosen = handle.plans["layers.0"].with_selection(["layers.0.dense.up"])
        handle.apply([chosen, handle.plans["layers.1"].with_selection([])])
        train_alike(plain, compressed, context.group.rank, steps=2, first=2)
        assert kinds(handle) == {
            "root": {"plain": 8},
            "layers.0": {"refresh": 1, "coded": 3},
            "layers.1": {"plain": 4},
        }
        with pytest.raises(ValueError, match="no group is named"):
            handle.apply([chosen.__class__(chosen.segments, chosen.dtype, chosen.settings, "layers.7")])
        with pytest.raises(ValueError, match="other segments"):
            handle.apply([chosen.__class__(chosen.segments[:-1], chosen.dtype, chosen.settings, "layers.0")])
        handle.remove()

    run_world(2, body, tmp_path)


def test_taking_compression_away(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        again = compress_all_gathers(compressed.model)
        assert again.plans == {}, "groups that are compressed already are left alone"
        train_alike(plain, compressed, context.group.rank, steps=2)
        handle.remove()
        assert all(type(current_all_gather(one)) is DefaultAllGather for one in parameter_groups(compressed.model))
        train_alike(plain, compressed, context.group.rank, steps=2, first=2)
        compress_all_gathers(compressed.model).remove()

    run_world(2, body, tmp_path)


def test_models_that_are_not_sharded_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"call torch\.distributed\.fsdp\.fully_shard first"):
        compress_all_gathers(torch.nn.Linear(4, 4))


def test_a_world_of_one_has_nothing_to_gather(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        plain, compressed, handle = pair(BF16, cpu_mesh(1))
        assert handle.plans == {}
        handle.record()
        train_alike(plain, compressed, 0, steps=1)
        # A script that is written for many ranks runs on one.
        assert handle.keep_worthwhile() == ()
        with pytest.raises(ValueError, match="nothing is gathered from other ranks"):
            handle.trace("a test")
        torch.distributed.destroy_process_group()

    run_world(1, body, tmp_path)
