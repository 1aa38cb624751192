"""Routed experts spread over a group of ranks: takes the place of a plain model's ``RoutedExperts``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.dispatch import DROPPED
from ciera_piper_core.models.feed_forward import RoutedExperts
from ciera_piper_core.moe import grouped
from ciera_piper_core.moe.expert_table import ExpertTable, contiguous_table
from ciera_piper_core.moe.router import is_recomputing
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ciera_piper_core.alltoall.dispatch import Dispatcher
    from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic
    from ciera_piper_core.moe.router import Routes

MATRICES = ("up", "gate", "down")


class ExpertParallel(RoutedExperts):
    """The router of a plain module, and those of its experts that this rank holds.

    Parameters have the plain module's names: ``router.weight``, ``experts.up/gate/down``; the latter are
    stacked in the order of ``local_experts``. Results and gradients are those of the plain module, up to
    the order of sums: gradients of the router are those of this rank's tokens, those of the
    experts of the tokens of *all* ranks of the group, summed. So who sums the router's over data ranks
    sums the experts' over ranks that hold the same ones, with the same factor on each rank's loss.

    Attributes:
        router: copied on all ranks.
        experts: this rank's.
        group: the ranks that share the experts.
        table: which of them holds which.
        counts: choices that this rank's tokens made of each expert since ``take_counts``: ``(experts,)``,
            int64; of forward passes that learn, each once.
        traffic: bytes of the last dispatch that left this rank; None before the first.
    """

    def __init__(
        self,
        plain: RoutedExperts,
        group: dist.ProcessGroup,
        dispatcher: Dispatcher | None,
        table: ExpertTable | None = None,
    ) -> None:
        """Take over ``plain``: its router as it is, of its experts this rank's.

        Args:
            plain: may be on the meta device; then so are the experts, to be filled by ``models.initialisation``.
            dispatcher: bound to ``group``; None for a subclass that has its own ``through_experts``.
            table: None for neighbouring experts together, as many on each rank.

        Raises:
            ValueError: a table of another number of experts or ranks; without one, experts that do not divide.
        """
        # Not the plain module's: that would make all experts.
        torch.nn.Module.__init__(self)
        experts, ranks = len(plain.experts.up), dist.get_world_size(group)
        self.group, self._dispatcher = group, dispatcher
        self.table = contiguous_table(experts, ranks) if table is None else table
        self._check_table(self.table, experts)
        self.router = plain.router
        self.experts = _part(plain.experts, self.local_experts)
        self.counts = torch.zeros(experts, dtype=torch.int64)
        self.traffic: DispatchTraffic | None = None

    @property
    def dispatcher(self) -> Dispatcher:
        """As given."""
        assert self._dispatcher is not None, "a layer without dispatcher has its own through_experts"
        return self._dispatcher

    @property
    def local_experts(self) -> tuple[int, ...]:
        """This rank's experts, in the order of the stacked weights."""
        return self.table.held[dist.get_rank(self.group)]

    def forward(self, x: torch.Tensor, counts: Sequence[int] | None = None) -> torch.Tensor:
        """As ``RoutedExperts.forward`` (collective over the group, also for ranks without tokens).

        Raises:
            ValueError: ``counts`` stated: tensors without data cannot be exchanged.
        """
        if counts is not None:
            raise ValueError("expert parallelism takes no stated counts: it exchanges what the router chose")
        with region("moe.router"):
            routes = self.router(x)
            self._count(routes)
        return self.through_experts(x.flatten(0, -2), routes).view_as(x)

    def through_experts(self, tokens: torch.Tensor, routes: Routes) -> torch.Tensor:
        """Tokens to their experts and back (collective).

        Args:
            tokens: ``(n, hidden)``. routes: of them.

        Returns:
            ``(n, hidden)``: for each token the weighted sum of what its experts make of it.
        """
        with region("moe.dispatch"):
            ranks, slots = self._places(routes.experts)
            arrived = self.dispatcher.dispatch(tokens, ranks, routes.weights, slots)
            self.traffic = arrived.traffic
            assert arrived.weights is not None
            # Stable: an expert's tokens in order of rank and token, which is that of the plain module.
            slot, order = arrived.labels.sort(stable=True)
            here = torch.arange(len(self.local_experts), device=slot.device)
            ends = torch.searchsorted(slot, here, right=True, out_int32=True)
            rows, weights = arrived.rows.index_select(0, order), arrived.weights.index_select(0, order)
        with region("moe.experts"):
            rows = grouped.grouped_experts(self.experts, rows, ends, weights)
        with region("moe.combine"):
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            # The weights are in the rows already.
            return replace(arrived, weights=None).combine(rows.index_select(0, back))

    def take_counts(self) -> torch.Tensor:
        """``counts``, which begin again from 0."""
        taken, self.counts = self.counts, torch.zeros_like(self.counts)
        return taken

    def place(self, table: ExpertTable, weights: Mapping[str, torch.Tensor]) -> None:
        """Hold other experts from now on; all ranks of the group call it with the same table.

        Parameters stay the same objects; those whose number of experts changes get new storage.

        Args:
            weights: by name (``up``, ``gate``, ``down``), stacked in the order of the new table.

        Raises:
            ValueError: a table of another number of experts or ranks, weights missing or of another shape.
        """
        self._check_table(table, self.table.experts)
        mine = table.held[dist.get_rank(self.group)]
        parameters = dict(self.experts.named_parameters())
        if parameters.keys() != weights.keys():
            raise ValueError(f"these experts have the weights {', '.join(parameters)}, not {', '.join(weights)}")
        for name, parameter in parameters.items():
            shape = (len(mine), *parameter.shape[1:])
            if tuple(weights[name].shape) != shape:
                raise ValueError(f"{name} of {len(mine)} experts has shape {shape}, not {tuple(weights[name].shape)}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                if parameter.shape == weights[name].shape:
                    parameter.copy_(weights[name])
                else:
                    parameter.data = weights[name].to(parameter)
                    parameter.grad = None
        self.table = table

    def _places(self, experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ranks and slots of chosen experts, ``DROPPED`` and 0 where the choice was dropped."""
        dropped, known = experts < 0, experts.clamp(min=0)
        ranks = self.table.ranks_tensor(experts.device)[known]
        slots = self.table.slots_tensor(experts.device)[known]
        return ranks.masked_fill(dropped, DROPPED), slots

    def _count(self, routes: Routes) -> None:
        # Not again when the backward pass computes the forward pass anew; nor when nothing is learnt.
        if torch.is_grad_enabled() and not is_recomputing():
            chosen = routes.experts.flatten()
            chosen = chosen[chosen >= 0]
            self.counts = self.counts.to(chosen.device) + torch.bincount(chosen, minlength=len(self.counts))

    def _check_table(self, table: ExpertTable, experts: int) -> None:
        ranks = dist.get_world_size(self.group)
        if (table.experts, table.ranks) != (experts, ranks):
            raise ValueError(
                f"a table of {table.experts} experts on {table.ranks} ranks for {experts} experts on {ranks} ranks"
            )


def spread_experts(
    model: torch.nn.Module, replacement: Callable[[str, RoutedExperts], torch.nn.Module]
) -> dict[str, ExpertParallel]:
    """Replace every ``RoutedExperts`` of ``model``, in place, by what ``replacement(name, plain)`` gives.

    Returns:
        the replacements that are ``ExpertParallel``, by their names in the model, in its order.
    """
    spread = {}
    plains = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, RoutedExperts) and not isinstance(module, ExpertParallel)
    ]
    for name, plain in plains:
        owner, _, attribute = name.rpartition(".")
        made = replacement(name, plain)
        setattr(model.get_submodule(owner), attribute, made)
        if isinstance(made, ExpertParallel):
            spread[name] = made
    return spread


def _part(whole: grouped.Experts, experts: Sequence[int]) -> grouped.Experts:
    """Those experts of ``whole``."""
    _, ffn, hidden = whole.up.shape
    matrices = 2 if whole.gate is None else 3
    up = whole.up
    part = grouped.Experts(len(experts), hidden, ffn, matrices, dtype=up.dtype, device=up.device)
    if not up.is_meta:
        chosen = torch.tensor(experts, device=up.device)
        with torch.no_grad():
            for name, weight in part.named_parameters():
                weight.copy_(whole.get_parameter(name).index_select(0, chosen))
    return part
