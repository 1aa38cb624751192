"""Attention blocks of the catalogue's models: QKV projection, causal attention and output projection.

The block is timed whole, forward alone or with the gradients of input and weights. Tensor
parallelism divides the heads as in deployments, and shows one rank's share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.suite import Axis
from ciera_piper_core.models import catalogue
from ciera_piper_core.models.attention_shape import AttentionShape
from suites.compute import DIRECTION, DTYPE, THREADS, ComputeSuite, direction_factor, item_bytes
from suites.layer import LayerWorkload, filled_weights
from suites.tensors import count_wrong, row_scale, tolerance, torch_dtype, whole_scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value
    from ciera_piper_core.models.attention import CausalAttention

EARLY_POSITIONS = 4
"""The first tokens see few others, so there a wrong mask shows best."""

LATER_POSITIONS = 12


class AttentionSuite(ComputeSuite):
    """One attention block a case."""

    name: ClassVar[str] = "attention"
    summary: ClassVar[str] = "attention blocks of the catalogue's models: MHA, GQA and MLA, forward and backward"
    method_version: ClassVar[int] = 1
    characterizes: ClassVar[bool] = True
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("model", "str", "architecture whose attention block is computed", tuple(catalogue.names())),
        Axis("tensor_parallel", "int", "ranks that share the heads; the block is one rank's part", minimum=1),
        Axis("sequence", "int", "tokens of a sequence", minimum=1),
        Axis("batch", "int", "sequences", minimum=1),
        DIRECTION,
        DTYPE,
        THREADS,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "model": ("olmoe-1b-7b", "mixtral-8x7b", "deepseek-v2-lite"),
            "tensor_parallel": (8,),
            "sequence": (512, 1024),
            "batch": (1,),
            "direction": DIRECTION.choices,
            "dtype": ("bfloat16",),
            "threads": (0,),
        },
        "standard": {
            "model": ("olmoe-1b-7b", "mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v2-lite", "deepseek-v3"),
            "tensor_parallel": (1, 8),
            "sequence": (512, 1024, 2048, 4096, 8192),
            "batch": (1,),
            "direction": DIRECTION.choices,
            "dtype": ("bfloat16",),
            "threads": (0,),
        },
        "full": {
            "model": (
                "olmoe-1b-7b",
                "qwen3-30b-a3b",
                "mixtral-8x7b",
                "qwen3-235b-a22b",
                "dbrx",
                "deepseek-v2-lite",
                "deepseek-v3",
                "kimi-k2",
            ),
            "tensor_parallel": (1, 8),
            "sequence": (512, 1024, 2048, 4096, 8192),
            "batch": (1,),
            "direction": DIRECTION.choices,
            "dtype": ("bfloat16", "float32"),
            "threads": (0,),
        },
    }

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        for case in super().cases(preset, overrides):
            yield type(case)({**case.params, "heads": catalogue.load(case["model"]).attention.head_kind})

    def keeps(self, case: Case) -> bool:
        shape = AttentionShape.from_architecture(catalogue.load(case["model"]))
        return shape.can_shard(case["tensor_parallel"])

    def flops(self, case: Case) -> int:
        forward = shape_of(case).forward_flops(case["batch"], case["sequence"])
        return forward * direction_factor(case)

    def memory_bytes(self, case: Case, site: Site) -> int:
        shape, item = shape_of(case), item_bytes(case)
        tokens = int(case["batch"]) * int(case["sequence"])
        backward = case["direction"] == "forward_backward"
        # With gradients: those of the last iteration live on while the next makes its own.
        held = 3 if backward else 1
        # A row of input, output, latents and q, k, v with the copies that the kernel wants.
        heads = shape.heads * 4 * max(shape.qk_dim, shape.v_dim)
        row = 2 * shape.hidden + heads + (shape.mla.q_lora + shape.mla.kv_lora if shape.mla else 0)
        measured = (tokens * row + shape.parameters()) * item
        # The oracle has weights, input, keys and values in double precision.
        oracle = 8 * (shape.parameters() + tokens * (shape.hidden + heads))
        return held * (measured + oracle)

    def setup(self, case: Case, context: Context) -> _Block:
        return _Block(self, case, context)


def shape_of(case: Case) -> AttentionShape:
    """The block's dimensions, on one tensor-parallel rank."""
    return AttentionShape.from_architecture(catalogue.load(case["model"])).shard(case["tensor_parallel"])


class _Block(LayerWorkload):
    """One pass of the block over the batch."""

    def __init__(self, suite: AttentionSuite, case: Case, context: Context) -> None:
        from ciera_piper_core.models.attention import CausalAttention

        shape = shape_of(case)
        super().__init__(suite, case, context, (case["batch"], case["sequence"], shape.hidden))
        block = CausalAttention(shape, dtype=torch_dtype(case["dtype"]), device=context.site.device)
        self._block = filled_weights(block, context.site.seed)

    @property
    def _layer(self) -> CausalAttention:
        return self._block

    def check(self) -> int:
        """Wrong elements of the outputs at some positions of every sequence, and of gradients.

        Of the gradients that were timed, those of the inputs at the last position are checked, which
        no other position's output determines. For all others the block runs again, with an upstream
        gradient that is zero but at these few positions: then they determine every gradient.
        """
        import torch

        from ciera_piper_core.models.attention_reference import reference_attention

        names = [name.removeprefix("weights.") for name, _ in self._block.named_parameters()]
        oracle = [p.detach().double().requires_grad_(self._backward) for p in (self._input, *self._block.parameters())]
        positions = sampled_positions(self._input.shape[1])
        shape = self._block.shape
        expected = reference_attention(shape, dict(zip(names, oracle[1:], strict=True)), oracle[0], positions)
        allowed = tolerance(self.output.dtype, max(max(size) for size in shape.projections().values()))
        values = expected.detach()
        wrong = count_wrong(self.output[:, positions], values, allowed, scale=row_scale(values))
        if self._upstream is None:
            return wrong
        timed = self.gradients[0][:, -1:].clone()
        kept = torch.zeros_like(self._upstream)
        kept[:, positions] = self._upstream[:, positions]
        self._upstream = kept
        self.run()
        of_input, *of_weights = torch.autograd.grad(expected, oracle, kept[:, positions].double())
        measured, *rest = self.gradients
        scale = row_scale(of_input)
        wrong += count_wrong(timed, of_input[:, -1:], 2 * allowed, scale=scale[:, -1:])
        wrong += count_wrong(measured, of_input, 2 * allowed, scale=scale)
        for mine, gradient in zip(rest, of_weights, strict=True):
            wrong += count_wrong(mine, gradient, 2 * allowed, scale=whole_scale(gradient))
        return wrong


def sampled_positions(sequence: int) -> list[int]:
    """The first few positions, and some up to the last that meet every part of a kernel's block."""
    later = ((sequence - 1) * step // LATER_POSITIONS for step in range(1, LATER_POSITIONS + 1))
    return sorted({*range(min(EARLY_POSITIONS, sequence)), *later})
