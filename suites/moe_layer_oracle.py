"""What a layer with spread experts is checked against: experts drawn anew, one after the other, in double precision.

No rank could hold all experts of a large layer. But each is drawn from its number alone, so the few
that some sampled tokens chose can be made wherever they are needed. Nothing of dispatch, grouped
products and combine is used here. Attention, router and shared blocks are copied and have tests of
their own: they are used as they are.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from ciera_piper_core.models.initialisation import draw
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.moe.grouped_reference import reference_expert
from suites.tensors import count_wrong, row_scale, tolerance, whole_scale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from ciera_piper_core.models.transformer import TransformerLayer

EXPERTS = "routed_experts.experts."


class _Expected(NamedTuple):
    """Of some tokens.

    Attributes:
        rows: ``(tokens, hidden)``, float64: the layer's output.
        tokens: ``(tokens, hidden)``: what their experts read.
        experts, weights: ``(tokens, choices)``.
    """

    rows: Tensor
    tokens: Tensor
    experts: Tensor
    weights: Tensor


class LayerOracle:
    """Outputs and gradients of a layer at sampled positions, by the definition.

    Args:
        layer: whose routed experts are spread.
        seed: that the layer was initialised with.
        gather: hands every rank's object to all (collective).
    """

    def __init__(self, layer: TransformerLayer, seed: int, gather: Callable[[Any], list[Any]]) -> None:
        assert isinstance(layer.routed_experts, ExpertParallel)
        self._layer, self._experts, self._seed, self._gather = layer, layer.routed_experts, seed, gather
        stacked = dict(self._experts.experts.named_parameters())
        self._shapes = {name: tuple(stack.shape[1:]) for name, stack in stacked.items()}
        like = stacked["up"]
        self._dtype, self._device = like.dtype, like.device
        self._allowed = tolerance(self._dtype, max(max(shape) for shape in self._shapes.values()))

    def wrong_outputs(self, x: Tensor, output: Tensor, positions: Sequence[int]) -> int:
        """Wrong elements of ``output``, ``(batch, sequence, hidden)``, at these positions of every sequence."""
        with torch.no_grad():
            expected = self._expected(x, positions).rows
        mine = output[:, positions].flatten(0, 1)
        return count_wrong(mine, expected, self._allowed, scale=row_scale(expected))

    def wrong_gradients(
        self, x: Tensor, upstream: Tensor, gradients: Mapping[str, Tensor], positions: Sequence[int]
    ) -> int:
        """Wrong elements of gradients (collective).

        Args:
            x, upstream: of this rank; ``upstream`` is zero but at ``positions``.
            gradients: by parameter's name, summed over ranks; ``input`` for that of ``x``.
        """
        x = x.clone().requires_grad_()
        expected = self._expected(x, positions)
        given = upstream[:, positions].flatten(0, 1)
        copied = {name: weight for name, weight in self._layer.named_parameters() if not name.startswith(EXPERTS)}
        of_x, *of_copied = torch.autograd.grad(expected.rows, (x, *copied.values()), given.double())
        wrong = self._count(gradients["input"], of_x.double())
        for name, gradient in zip(copied, of_copied, strict=True):
            total = gradient.float()
            dist.all_reduce(total, group=self._experts.group)
            wrong += self._count(gradients[name], total.double())
        return wrong + self._wrong_experts(expected, given, gradients)

    def _wrong_experts(self, expected: _Expected, upstream: Tensor, gradients: Mapping[str, Tensor]) -> int:
        """Of this rank's experts, whose tokens come from all ranks."""
        mine = (expected.tokens, expected.experts, expected.weights, upstream)
        everyone = self._gather(tuple(tensor.detach().cpu() for tensor in mine))
        tokens, experts, weights, given = (torch.cat(parts).to(self._device) for parts in zip(*everyone, strict=True))
        wrong = 0
        for slot, number in enumerate(self._experts.local_experts):
            chosen, choice = (experts == number).nonzero(as_tuple=True)
            parts = {name: gradients[EXPERTS + name][slot] for name in self._shapes}
            if not len(chosen):
                # Nobody sent a token that could give it a gradient.
                wrong += sum(int(torch.count_nonzero(part)) for part in parts.values())
                continue
            drawn = {name: weight.requires_grad_() for name, weight in self._drawn(number).items()}
            out = reference_expert(drawn, tokens[chosen]) * weights[chosen, choice].double()[:, None]
            of_drawn = torch.autograd.grad(out, tuple(drawn.values()), given[chosen].double())
            for part, gradient in zip(parts.values(), of_drawn, strict=True):
                wrong += self._count(part, gradient)
        return wrong

    def _count(self, mine: Tensor, expected: Tensor) -> int:
        if expected.dim() == 1:
            mine, expected = mine[None], expected[None]
        return count_wrong(mine, expected, 2 * self._allowed, scale=whole_scale(expected))

    def _expected(self, x: Tensor, positions: Sequence[int]) -> _Expected:
        layer = self._layer
        if layer.attention is not None:
            x = x + layer.attention(layer.attention_norm(x))
        assert layer.feed_forward_norm is not None
        normalised = layer.feed_forward_norm(x)
        routes = self._experts.router(normalised)

        def sampled(tensor: Tensor) -> Tensor:
            """Of ``(batch, sequence, ...)`` or ``(batch * sequence, ...)``, the rows at the positions."""
            return tensor.reshape(*x.shape[:2], tensor.shape[-1])[:, positions].flatten(0, 1)

        tokens, weights, experts = sampled(normalised), sampled(routes.weights), sampled(routes.experts)
        rows = sampled(x).double()
        for block in (layer.shared_experts, layer.dense):
            if block is not None:
                rows = rows + sampled(block(normalised)).double()
        for number in sorted(set(experts.flatten().tolist()) - {-1}):
            chosen, choice = (experts == number).nonzero(as_tuple=True)
            out = reference_expert(self._drawn(number), tokens[chosen]) * weights[chosen, choice].double()[:, None]
            rows = rows.index_add(0, chosen, out)
        return _Expected(rows, tokens, experts, weights)

    def _drawn(self, number: int) -> dict[str, Tensor]:
        """The weights that the expert of that number was given, as float64."""
        return {
            name: draw(self._seed, EXPERTS + name, shape, expert=number).to(self._dtype).double().to(self._device)
            for name, shape in self._shapes.items()
        }
