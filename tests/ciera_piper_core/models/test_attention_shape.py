"""Tests of attention shapes: shards, weights and operation counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.attention import CausalAttention
from ciera_piper_core.models.attention_shape import AttentionShape


def shape(name: str) -> AttentionShape:
    return AttentionShape.from_architecture(catalogue.load(name))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # By hand: hidden * (q + k + v widths) + (heads * v width) * hidden.
        ("olmoe-1b-7b", 4 * 2048 * 2048),
        ("mixtral-8x7b", 4096 * (4096 + 1024 + 1024) + 4096 * 4096),
        ("qwen3-30b-a3b", 2048 * (4096 + 512 + 512) + 4096 * 2048),
        # hidden * q_lora + q_lora * queries + hidden * (kv_lora + rope) + kv_lora * (nope + v) * heads + output.
        (
            "deepseek-v3",
            7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168,
        ),
        ("deepseek-v2-lite", 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048),
    ],
)
def test_parameters(name: str, parameters: int) -> None:
    assert shape(name).parameters() == parameters


@pytest.mark.parametrize("name", ["switch-base-128", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_projection_operations_are_those_that_torch_counts(name: str) -> None:
    batch, sequence = 2, 16
    part = shape(name).shard(4)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        CausalAttention(part, dtype=torch.float32)(torch.zeros(batch, sequence, part.hidden))
    by_operation = {str(op): flops for op, flops in counted.get_flop_counts()["Global"].items()}
    projections = sum(flops for op, flops in by_operation.items() if op in ("aten.mm", "aten.addmm", "aten.bmm"))
    pairs = batch * part.heads * sequence * (sequence + 1) // 2
    assert part.forward_flops(batch, sequence) == projections + 2 * (part.qk_dim + part.v_dim) * pairs


def test_shards_share_the_heads() -> None:
    whole = shape("mixtral-8x7b")
    eighth, thirtysecond = whole.shard(8), whole.shard(32)
    assert (eighth.heads, eighth.kv_heads) == (4, 1)
    # Fewer key/value heads than ranks: each rank has a copy of one.
    assert (thirtysecond.heads, thirtysecond.kv_heads) == (1, 1)
    assert whole.shard(1) == whole


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_shards_of_divided_heads_add_up_to_the_whole(ranks: int) -> None:
    whole = shape("mixtral-8x7b")
    assert ranks * whole.shard(ranks).parameters() == whole.parameters()
    assert ranks * whole.shard(ranks).forward_flops(2, 100) == whole.forward_flops(2, 100)


def test_latent_projections_are_not_divided() -> None:
    whole, part = shape("deepseek-v3"), shape("deepseek-v3").shard(16)
    undivided = 7168 * 1536 + 7168 * 576
    assert 16 * (part.parameters() - undivided) == whole.parameters() - undivided


@pytest.mark.parametrize(("name", "ranks"), [("qwen2-57b-a14b", 8), ("olmoe-1b-7b", 3), ("olmoe-1b-7b", 0)])
def test_uneven_shards_are_refused(name: str, ranks: int) -> None:
    assert not shape(name).can_shard(ranks)
    with pytest.raises(ValueError, match=f"do not divide over {ranks} ranks"):
        shape(name).shard(ranks)
