"""Tests of the attention block: against the plain reference, and the reference against torch's own attention."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.models.architecture import MLA
from ciera_piper_core.models.attention import CausalAttention
from ciera_piper_core.models.attention_reference import reference_attention
from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.ranges import recording

SHAPES = {
    "mha": AttentionShape(hidden=48, heads=4, kv_heads=4, qk_dim=16, v_dim=16),
    "gqa": AttentionShape(hidden=48, heads=6, kv_heads=2, qk_dim=16, v_dim=16),
    "mla": AttentionShape(48, 4, 4, 24, 16, MLA(q_lora=20, kv_lora=12, qk_nope=16, qk_rope=8, v_head=16)),
    "mla-full-rank": AttentionShape(48, 4, 4, 24, 16, MLA(q_lora=0, kv_lora=12, qk_nope=16, qk_rope=8, v_head=16)),
}


def make(kind: str, sequence: int = 33, dtype: torch.dtype = torch.float32) -> tuple[CausalAttention, torch.Tensor]:
    """A block and an input, both random."""
    generator = torch.Generator().manual_seed(1)
    block = CausalAttention(SHAPES[kind], dtype=dtype)
    with torch.no_grad():
        for weight in block.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
    x = torch.randn(2, sequence, SHAPES[kind].hidden, generator=generator).to(dtype)
    return block, x


def reference(block: CausalAttention, x: torch.Tensor, positions: list[int] | None = None) -> torch.Tensor:
    weights = {name.removeprefix("weights."): weight for name, weight in block.named_parameters()}
    return reference_attention(block.shape, weights, x, positions or range(x.shape[1]))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "allowed"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)], ids=str
)
def test_the_block_agrees_with_the_reference(kind: str, dtype: torch.dtype, allowed: float) -> None:
    block, x = make(kind, dtype=dtype)
    torch.testing.assert_close(block(x).double(), reference(block, x), rtol=allowed, atol=allowed)


@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_agree_with_the_reference(kind: str) -> None:
    block, x = make(kind)
    x.requires_grad_()
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    leaves = [x, *block.parameters()]
    measured = torch.autograd.grad(block(x), leaves, upstream)
    expected = torch.autograd.grad(reference(block, x), leaves, upstream.double())
    for mine, right in zip(measured, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", SHAPES)
def test_no_token_sees_a_later_one(kind: str) -> None:
    block, x = make(kind)
    changed = x.clone()
    changed[:, 20:] += 1
    torch.testing.assert_close(block(changed)[:, :20], block(x)[:, :20])
    assert (block(changed)[:, 20:] - block(x)[:, 20:]).abs().min() > 0


def test_the_reference_agrees_with_torchs_own_multi_head_attention() -> None:
    _, x = make("mha")
    theirs = torch.nn.MultiheadAttention(48, 4, bias=False, batch_first=True, dtype=torch.float64)
    # torch makes heads of width hidden / heads.
    shape = AttentionShape(hidden=48, heads=4, kv_heads=4, qk_dim=12, v_dim=12)
    weights = {"qkv": theirs.in_proj_weight, "output": theirs.out_proj.weight}
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    expected, _ = theirs(x.double(), x.double(), x.double(), attn_mask=later, need_weights=False)
    torch.testing.assert_close(reference_attention(shape, weights, x, range(x.shape[1])), expected)


def test_equal_keys_make_a_running_mean() -> None:
    # With keys of zero every score is equal, so position p gets the mean of the values 0..p.
    block, x = make("mha")
    shape = block.shape
    with torch.no_grad():
        block.weights["qkv"][shape.heads * shape.qk_dim : 2 * shape.heads * shape.qk_dim] = 0
        block.weights["output"].copy_(torch.eye(64)[:48])
    values = x @ block.weights["qkv"][-64:].T
    running = values.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
    torch.testing.assert_close(block(x), running[..., :48], rtol=1e-5, atol=1e-5)


def test_the_reference_computes_any_positions() -> None:
    block, x = make("mla")
    torch.testing.assert_close(reference(block, x, [0, 7, 32]), reference(block, x)[:, [0, 7, 32]])


def test_the_parts_of_the_block_are_marked() -> None:
    block, x = make("gqa")
    with recording() as spans:
        block(x)
    assert [span.name for span in spans] == ["attention.qkv", "attention.core", "attention.output"]
