"""DeepSpeed's own mixture-of-experts layer in the place of a plain model's ``RoutedExperts``.

What its gate (``deepspeed.moe.sharded_moe``) does differently:

- a capacity is counted over the tokens of a rank's microbatch, not of one sequence: what is dropped depends
  on how a batch is cut. Without dropping, the buffer of every expert grows to that of the fullest one of
  all expert-parallel ranks, and is filled up with zeros, which are sent and computed like tokens;
- with two choices a token, its auxiliary loss looks at the first one alone; with any other number at all. It
  is taken over a microbatch, too;
- who is dropped: with one choice the last tokens (or at random, which is switched off here), with two the
  last ones, second choices after first, with more the least probable;
- with one choice the weight is the probability, with more they are made to sum to 1 after dropping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from ciera_piper_core.models.feed_forward import FeedForward
from ciera_piper_core.moe.balance import attach, balance_loss
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from torch import Tensor

    from ciera_piper_core.models.architecture import Experts
    from ciera_piper_core.moe.balance import AuxiliaryScale
    from ciera_piper_core.training.recipe import Routing

Balance = Literal["sequence", "deepspeed"]
GATE = "moe.deepspeed_moe.gate.wg.weight"
EXPERTS = "moe.deepspeed_moe.experts.deepspeed_experts."


class DeepSpeedExperts(torch.nn.Module):
    """``deepspeed.moe.layer.MoE`` with experts of our kind, uninitialised, in float32.

    Attributes:
        moe: DeepSpeed's module. Its experts are plain blocks, which its engine knows as expert parameters.
        ep: ranks that share the experts.
    """

    def __init__(
        self,
        experts: Experts,
        hidden: int,
        *,
        ep: int,
        routing: Routing,
        auxiliary: AuxiliaryScale,
        capacity_factor: float = 0.0,
        min_capacity: int = 4,
        balance: Balance = "sequence",
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            ep: divides the number of experts.
            routing: of it, ``balance_weight`` alone; its kind is ``top_k``.
            auxiliary: scale of the auxiliary loss's gradient.
            capacity_factor: of DeepSpeed's capacity, ``ceil(tokens * k * factor / experts)``; 0: nothing is dropped.
            min_capacity: the least capacity, tokens.
            balance: ``sequence``: the auxiliary loss of all systems, from one more product of tokens and
                router; ``deepspeed``: its own.
        """
        super().__init__()
        from deepspeed.moe.layer import MoE

        block = FeedForward(hidden, experts.ffn, experts.matrices, dtype=torch.float32, device=device)
        self.moe = MoE(
            hidden_size=hidden,
            expert=block,
            num_experts=experts.experts,
            ep_size=ep,
            k=experts.top_k,
            capacity_factor=capacity_factor or 1.0,
            eval_capacity_factor=capacity_factor or 1.0,
            min_capacity=min_capacity if capacity_factor else 0,
            drop_tokens=bool(capacity_factor),
            # Both draw random numbers, which no other system does.
            use_rts=False,
            top2_2nd_expert_sampling=False,
        ).to(device)
        self.ep, self.top_k = ep, experts.top_k
        self.balance, self.balance_weight, self.auxiliary = balance, routing.balance_weight, auxiliary
        self._phase = _Phase()
        layer = self.moe.deepspeed_moe
        layer.register_forward_pre_hook(lambda *_: self._phase.enter("moe.router"))
        layer.gate.register_forward_hook(lambda *_: self._phase.enter("moe.dispatch"))
        layer.experts.register_forward_pre_hook(lambda *_: self._phase.enter("moe.experts"))
        layer.experts.register_forward_hook(lambda *_: self._phase.enter("moe.combine"))

    def forward(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """As ``RoutedExperts.forward`` (collective over the expert-parallel ranks).

        Args:
            x: ``(batch, sequence, hidden)``.
            counts: None: tensors without data cannot be exchanged.
        """
        if counts is not None:
            raise ValueError("DeepSpeed's layer exchanges data; stated counts are for tensors without")
        with self._phase:
            out, own_loss, _ = self.moe(x)
        if not self.balance_weight or not torch.is_grad_enabled():
            return out  # type: ignore[no-any-return]
        with region("moe.router"):
            loss = own_loss if self.balance == "deepspeed" else self._sequence_loss(x)
            return attach(out, self.balance_weight * loss, self.auxiliary)

    def _sequence_loss(self, x: Tensor) -> Tensor:
        gate = self.moe.deepspeed_moe.gate.wg.weight
        probabilities = F.softmax(F.linear(x.float(), gate.float()), dim=-1)
        return balance_loss(probabilities, probabilities.detach().topk(self.top_k, dim=-1).indices)


class _Phase:
    """The region that is open: the next one closes it, and so does the end, by an exception too."""

    def __init__(self) -> None:
        self._open: region | None = None

    def enter(self, name: str) -> None:
        self._close()
        self._open = region(name)
        self._open.__enter__()

    def __enter__(self) -> None:
        self._close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def plain_name(name: str, rank: int, local_experts: int) -> tuple[str, int | None]:
    """Where a parameter is in the plain model.

    Args:
        name: in a model with ``DeepSpeedExperts``: ``layers.3.routed_experts.moe.deepspeed_moe...``.
        rank: among the ranks that share the experts.
        local_experts: of each.

    Returns:
        the plain name, and the expert's number in that stack; None for all other parameters.
    """
    if name.endswith(GATE):
        return f"{name.removesuffix(GATE)}router.weight", None
    before, found, after = name.partition(EXPERTS)
    if not found:
        return name, None
    number, _, matrix = after.partition(".")
    return f"{before}experts.{matrix}", rank * local_experts + int(number)
