"""What users hand to compressed gathers: tensors that do not fit, inference mode, other types, plans that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.errors import GatherMismatchError
from ciera_piper_core.allgather.plan import GatherPlan, Segment
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

BF16 = torch.bfloat16
VALUES = 3000


def values(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(VALUES, generator=generator).to(BF16)


@pytest.mark.parametrize("selected", [True, False])
def test_tensors_that_do_not_fit_are_refused_and_the_next_gather_works(selected: bool, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plan = GatherPlan.single(VALUES, BF16).with_selection(["shard"] if selected else [])
        gather = CompressedGather(plan, context.group.data)
        shard, out = values(context.group.rank, 0), torch.empty(2 * VALUES, dtype=BF16)
        for other_shard, other_out, message in (
            (shard[:-1], out, "shard has 2999 values; the plan says 3000"),
            (shard, out[:VALUES], "out has 3000 values; the plan says 6000"),
            (shard, torch.empty(4 * VALUES, dtype=BF16), "out has 12000 values; the plan says 6000"),
            (shard.float(), out.float(), r"shard is torch\.float32; the plan is of torch\.bfloat16"),
            (shard, out.half(), r"out is torch\.float16; the plan is of torch\.bfloat16"),
            (shard.repeat(2)[::2], out, r"shard is not contiguous; pass \.contiguous"),
            (shard, out.repeat(2)[::2], r"out is not contiguous; pass \.contiguous"),
        ):
            for act in (gather.gather, gather.start):
                with pytest.raises(ValueError, match=message):
                    act(other_shard, other_out)
        for _ in range(2):
            gather.gather(shard, out.fill_(7))
            assert torch.equal(out, torch.cat([values(0, 0), values(1, 0)]))
        gather.close()

    run_world(2, body, tmp_path)


@pytest.mark.parametrize("selected", [True, False])
@pytest.mark.parametrize("staged", [False, True])
def test_inference_mode_may_come_and_go(selected: bool, staged: bool, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plan = GatherPlan.single(10 * VALUES, BF16).with_selection(["shard"] if selected else [])
        with torch.inference_mode():
            gather = CompressedGather(plan, context.group.data, staged=staged)
            kept = torch.empty(20 * VALUES, dtype=BF16)
        for step in range(8):
            with torch.inference_mode(step % 2 == 0):
                shard = values(context.group.rank, step).repeat(10)
                out = kept if step % 4 < 2 else None
                full = gather.gather(shard, out) if step % 3 else gather.start(shard, out).wait_for_output()
            assert torch.equal(full, torch.cat([values(0, step).repeat(10), values(1, step).repeat(10)])), step
        pending = gather.start(shard, kept)
        with torch.inference_mode():
            pending.wait()
        assert torch.equal(kept, full)
        gather.close()

    run_world(2, body, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.int16, torch.complex64, torch.complex128])
def test_types_that_the_library_does_not_know_go_as_bytes(dtype: torch.dtype, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        gather = CompressedGather(GatherPlan((Segment("x", 0, 10, compressed=False),), dtype), context.group.data)
        shard = torch.full((10,), context.group.rank).to(dtype)
        expected = torch.cat([torch.full((10,), 0), torch.full((10,), 1)]).to(dtype).view(torch.uint8)
        for full in (
            gather.gather(shard),
            gather.gather(shard, torch.empty(20, dtype=dtype)),
            gather.start(shard).wait_for_output(),
        ):
            assert torch.equal(full.view(torch.uint8), expected)

    run_world(2, body, tmp_path)


def test_ranks_of_which_one_codes_nothing_are_told(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plan = GatherPlan.single(VALUES, BF16).with_selection(["shard"] if context.group.rank == 1 else [])
        with pytest.raises(
            GatherMismatchError, match=r"which segments are coded: rank 0, 2: \(\); rank 1: \('shard',\)"
        ):
            CompressedGather(plan, context.group.data)

    run_world(3, body, tmp_path, timeout_s=40)
