"""Expert feed-forward products over tokens an expert: one grouped product against a loop, even and ragged.

The weights rotate through more memory than the caches hold: in training an expert's weights come
from memory, because other layers ran since. The activation between the products is part of the
time and not of the operations.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, ClassVar

from bench.suite import Axis
from ciera_piper_core.models import catalogue
from suites.compute import DIRECTION, DTYPE, THREADS, ComputeSuite, direction_factor, item_bytes, rotation
from suites.layer import LayerWorkload, filled_weights
from suites.tensors import count_wrong, row_scale, tolerance, torch_dtype, whole_scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from bench.suite import Case, Context, Preset, Site, Value
    from ciera_piper_core.moe.grouped import Experts

DISTRIBUTIONS = ("uniform", "zipf", "with_empty")


def token_counts(distribution: str, tokens: int, experts: int) -> list[int]:
    """Tokens of each expert, whole numbers that sum to ``tokens``; the same on every machine.

    ``uniform``: as even as can be. ``zipf``: in proportion to ``1, 1/2, 1/3, ...``.
    ``with_empty``: every second expert has none, the others share evenly.
    """
    import numpy as np

    from ciera_piper_core.apportion import apportion, zipf_weights

    weights = {
        "uniform": np.ones(experts, dtype=np.int64),
        "zipf": zipf_weights(experts),
        "with_empty": 1 - np.arange(experts, dtype=np.int64) % 2,
    }[distribution]
    counts: list[int] = apportion(tokens, weights).tolist()
    return counts


class ExpertGemmSuite(ComputeSuite):
    """Up, gate and down products of the experts that one GPU holds."""

    name: ClassVar[str] = "expert_gemm"
    summary: ClassVar[str] = "expert products over tokens an expert, grouped against looped"
    method_version: ClassVar[int] = 1
    characterizes: ClassVar[bool] = True
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("model", "str", "architecture whose experts are computed", tuple(catalogue.names())),
        Axis("experts", "int", "experts on this device", minimum=1),
        Axis("tokens", "int", "token copies routed to these experts together", minimum=1),
        Axis("distribution", "str", "tokens an expert: even, zipf, or every second without", DISTRIBUTIONS),
        Axis("method", "str", "one grouped product a matrix, or a loop over experts", ("grouped", "looped")),
        DIRECTION,
        DTYPE,
        THREADS,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "model": ("qwen3-30b-a3b",),
            "experts": (8,),
            "tokens": (256, 1024, 2048),
            "distribution": DISTRIBUTIONS,
            "method": ("grouped", "looped"),
            "direction": ("forward",),
            "dtype": ("bfloat16",),
            "threads": (0,),
        },
        "standard": {
            "model": ("olmoe-1b-7b", "mixtral-8x7b", "deepseek-v3"),
            "experts": (8,),
            "tokens": (256, 1024, 4096, 16384, 65536, 102400),
            "distribution": DISTRIBUTIONS,
            "method": ("grouped", "looped"),
            "direction": DIRECTION.choices,
            "dtype": ("bfloat16",),
            "threads": (0,),
        },
        "full": {
            "model": ("olmoe-1b-7b", "qwen3-235b-a22b", "mixtral-8x7b", "deepseek-v3"),
            "experts": (8, 32),
            "tokens": (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 102400),
            "distribution": DISTRIBUTIONS,
            "method": ("grouped", "looped"),
            "direction": DIRECTION.choices,
            "dtype": ("bfloat16",),
            "threads": (0,),
        },
    }

    def keeps(self, case: Case) -> bool:
        # One expert knows no distribution.
        return int(case["experts"]) > 1 or case["distribution"] == "uniform"

    def flops(self, case: Case) -> int:
        forward = 2 * int(case["tokens"]) * _expert_parameters(case)
        return forward * direction_factor(case)

    def memory_bytes(self, case: Case, site: Site) -> int:
        architecture, item = catalogue.load(case["model"]), item_bytes(case)
        parameters = int(case["experts"]) * _expert_parameters(case)
        row = 2 * architecture.hidden + architecture.experts.matrices * architecture.experts.ffn
        backward: bool = case["direction"] == "forward_backward"
        # Gradients are as large as what they belong to; the check holds one expert in double precision.
        factor = 3 if backward else 1
        check = (2 if backward else 1) * 8 * _expert_parameters(case)
        weights: int = (_copies(case) + 2 * backward) * parameters * item
        return weights + factor * int(case["tokens"]) * row * item + check

    def setup(self, case: Case, context: Context) -> _ExpertProducts:
        return _ExpertProducts(self, case, context)


def _expert_parameters(case: Case) -> int:
    architecture = catalogue.load(case["model"])
    return architecture.experts.matrices * architecture.hidden * architecture.experts.ffn


def _copies(case: Case) -> int:
    return rotation(int(case["experts"]) * _expert_parameters(case) * item_bytes(case))


class _ExpertProducts(LayerWorkload):
    """The products of all experts once."""

    def __init__(self, suite: ExpertGemmSuite, case: Case, context: Context) -> None:
        from ciera_piper_core.moe.grouped import group_ends

        super().__init__(suite, case, context, (case["tokens"], catalogue.load(case["model"]).hidden))
        device = context.site.device
        self._grouped = case["method"] == "grouped"
        self._counts = token_counts(case["distribution"], case["tokens"], case["experts"])
        self._ends = group_ends(self._counts, device)
        self._rotated = [filled_weights(_experts(case, device), context.site.seed)]
        self._rotated += [copy.deepcopy(self._rotated[0]) for _ in range(_copies(case) - 1)]
        self._current = 0

    @property
    def _layer(self) -> Experts:
        return self._rotated[self._current]

    def prepare(self) -> None:
        self._current = (self._current + 1) % len(self._rotated)

    def _forward(self) -> torch.Tensor:
        from ciera_piper_core.moe.grouped import grouped_experts, looped_experts

        if self._grouped:
            return grouped_experts(self._layer, self._input, self._ends)
        return looped_experts(self._layer, self._input, self._counts)

    def check(self) -> int:
        """Wrong elements of the outputs of each expert's first, middle and last token, and of gradients.

        Of the gradients that were timed, those of these tokens are checked, which no other token
        determines. For those of the weights the products run again, with an upstream gradient that
        is zero for all other tokens: then these few tokens determine every gradient.
        """
        import torch

        wrong = 0
        rows = _sampled_rows(self._counts)
        sampled = list(itertools.chain.from_iterable(rows))
        # What the timed iterations left; the run below replaces it.
        output, of_tokens = self.output, self.gradients[:1]
        if self._upstream is not None:
            self._upstream = _keep_rows(self._upstream, sampled)
            self.run()
            # No other token may have a gradient.
            others = self.gradients[0].clone()
            others[sampled] = 0
            wrong += int(torch.count_nonzero(others))
        for expert, expert_rows in enumerate(rows):
            wrong += self._wrong_of(expert, expert_rows, output, of_tokens)
        return wrong

    def _wrong_of(self, expert: int, rows: list[int], output: torch.Tensor, timed: tuple[torch.Tensor, ...]) -> int:
        """Wrong elements of one expert: of the output at some rows, and of the gradients that they give.

        Args:
            timed: the tokens' gradients of the last timed iteration, if there are gradients.
        """
        import torch

        from ciera_piper_core.moe.grouped_reference import reference_expert

        stacks = dict(self._layer.named_parameters())
        oracle = {
            name: stack[expert].detach().double().requires_grad_(self._backward) for name, stack in stacks.items()
        }
        tokens = self._input.detach()[rows].double().requires_grad_(self._backward)
        expected = reference_expert(oracle, tokens)
        allowed = tolerance(output.dtype, max(oracle["down"].shape))
        values = expected.detach()
        wrong = count_wrong(output[rows], values, allowed, scale=row_scale(values))
        if self._upstream is not None:
            of_tokens, *of_weights = torch.autograd.grad(
                expected, (tokens, *oracle.values()), self._upstream[rows].double()
            )
            measured, *stacked = self.gradients
            for gradient in (*timed, measured):
                wrong += count_wrong(gradient[rows], of_tokens, 2 * allowed, scale=row_scale(of_tokens))
            for stack, gradient in zip(stacked, of_weights, strict=True):
                wrong += count_wrong(stack[expert], gradient, 2 * allowed, scale=whole_scale(gradient))
        return wrong


def _experts(case: Case, device: str) -> Experts:
    from ciera_piper_core.moe.grouped import Experts

    architecture = catalogue.load(case["model"])
    return Experts(
        case["experts"],
        architecture.hidden,
        architecture.experts.ffn,
        architecture.experts.matrices,
        dtype=torch_dtype(case["dtype"]),
        device=device,
    )


def _sampled_rows(counts: list[int]) -> list[list[int]]:
    """First, middle and last token of each expert; none for an expert without tokens."""
    rows, start = [], 0
    for count in counts:
        rows.append(sorted({start, start + count // 2, start + count - 1}) if count else [])
        start += count
    return rows


def _keep_rows(tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """``tensor`` with all other rows zero."""
    import torch

    kept = torch.zeros_like(tensor)
    kept[rows] = tensor[rows]
    return kept
