"""Tests of traces of FSDP2's gathers and of what is chosen by them, also where ranks gather in several sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ciera_piper_core.allgather.fsdp import compress_all_gathers
from ciera_piper_core.allgather.selection import ChangeRates
from tests.ciera_piper_core.allgather.fsdp_training import cpu_mesh
from tests.ciera_piper_core.allgather.test_fsdp import BF16, GROUPS, SMALL_BLOCKS, kinds, pair, train_alike
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

    from bench.suite import Context
    from ciera_piper_core.allgather.fsdp import CompressedModel


def recorded(*meshes: DeviceMesh) -> CompressedModel:
    """A matrix sharded over each mesh, gathered and recorded a few times."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in meshes))
    for layer, mesh in zip(model, meshes, strict=True):
        fully_shard(layer, mesh=mesh)
    handle = compress_all_gathers(model, SMALL_BLOCKS)
    handle.record()
    for _ in range(3):
        for layer in model:
            layer.unshard()  # type: ignore[operator]
            layer.reshard()  # type: ignore[operator]
    return handle


@pytest.mark.alone
def test_what_is_worthwhile_is_found_by_measuring(tmp_path: Path) -> None:
    def body(context: Context) -> list[str]:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        with pytest.raises(ValueError, match="nothing was recorded"):
            handle.keep_worthwhile()
        train_alike(plain, compressed, context.group.rank, steps=1)
        handle.record()
        train_alike(plain, compressed, context.group.rank, steps=3, first=1)
        trace = handle.trace("a test")
        assert [gather.name for gather in trace.gathers] == list(GROUPS)
        assert {len(shard.changed_blocks) for gather in trace.gathers for shard in gather.shards} == {6}
        (selection,) = handle.keep_worthwhile(trace)
        assert {shard.name for shard in selection.shards} == {name for name, _ in compressed.shards()}
        train_alike(plain, compressed, context.group.rank, steps=2, first=4)
        # Such small shards are gathered faster than anything could be coded.
        assert set().union(*kinds(handle).values()) == {"plain"}
        (selection,) = handle.keep_worthwhile(ChangeRates(0.01), budget_bytes=0)
        assert selection.cache_bytes == 0
        handle.remove()
        return sorted(name for _, name in selection.selected)

    first, second = run_world(2, body, tmp_path)
    assert first == second


def test_a_trace_has_the_ranks_that_gather_not_all_of_the_job(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        handle = recorded(mesh)
        trace = handle.trace("two replicas")
        assert trace.world == 2
        assert [gather.name for gather in trace.gathers] == ["0"]
        handle.remove()

    run_world(4, body, tmp_path)


def test_a_part_of_the_job_traces_and_chooses_without_the_others(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "shard"))["shard"]
        if context.group.rank < 2:
            handle = recorded(mesh)
            assert len(handle.keep_worthwhile()) == 1
            handle.remove()

    run_world(4, body, tmp_path)


def test_sets_of_several_sizes_are_chosen_by_what_each_recorded(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        halves = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "half"))["half"]
        handle = recorded(cpu_mesh(4), halves)
        with pytest.raises(ValueError, match="some parameters are gathered from 2 ranks and others from 4"):
            handle.trace("both")
        handle.remove()
        handle = recorded(cpu_mesh(4), halves)
        selections = handle.keep_worthwhile()
        assert [[gather.name for gather in each.gathers] for each in selections] == [["0"], ["1"]]
        handle.remove()

    run_world(4, body, tmp_path)
