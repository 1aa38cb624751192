"""The workload of a layer whose experts are spread over ranks: its passes, and their check.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from bench.suite import Workload
from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.dedup import DedupDispatch
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.alltoall.placement import placement_from_nodes
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.transformer import TransformerLayer
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.moe.expert_table import contiguous_table
from ciera_piper_core.systems.gradient_buckets import GradientBuckets
from ciera_piper_core.training.recipe import Routing
from suites.moe_layer_oracle import LayerOracle
from suites.raw_transfer import node_of_rank
from suites.tensors import fill, torch_dtype

if TYPE_CHECKING:
    from bench.definitions import Work
    from bench.suite import Case, Context
    from ciera_piper_core.alltoall.dispatch import Dispatched, Dispatcher
    from ciera_piper_core.alltoall.placement import Placement
    from ciera_piper_core.models.architecture import Layer

EXPERTS = "routed_experts.experts."
"""What the names of the parameters begin with that are not copied."""

GRADIENT_GROUP = "moe_layer/gradient_group"
"""Key in ``Context.scratch``."""


class _Chosen:
    """The dispatcher of the next pass: a layer keeps the one that it was made with."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def dispatch(
        self,
        tokens: torch.Tensor,
        expert_rank_of_choice: torch.Tensor,
        weights: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Dispatched:
        return self.dispatcher.dispatch(tokens, expert_rank_of_choice, weights, labels)


class LayerPass(Workload):
    """One pass of a layer over the sequences of this rank.

    Attributes:
        layer: with its experts spread.
        output: of the last pass, ``(batch, sequence, hidden)``; NaN before the first.
        gradients: of the last pass: by parameter's name, summed over ranks, and ``input``; empty for ``forward``.
    """

    def __init__(self, case: Case, context: Context, layer: Layer, hidden: int, work: Work) -> None:
        """Build it (collective)."""
        self.work = work
        self._threads_before = torch.get_num_threads()
        if context.site.device == "cpu":
            torch.set_num_threads(context.site.cores)
        group, seed, device = context.group.data, context.site.seed, context.site.device
        assert group is not None, "a group of two ranks or more has a data group"
        self._backward = case["direction"] == "forward_backward"
        dtype = torch_dtype(case["dtype"])
        routing = Routing(case["router"], balance_weight=0.0, skew=case["skew"])
        self.layer = TransformerLayer(layer, hidden, dtype=dtype, device="meta", routing=routing)
        plain = self.layer.routed_experts
        assert plain is not None
        placement = placement_from_nodes(node_of_rank(context), "the launcher")
        self._flat = _dispatcher("flat", group, placement)
        self._own = self._flat if case["algorithm"] == "flat" else _dispatcher(case["algorithm"], group, placement)
        table = contiguous_table(len(plain.router.weight), context.group.world, uneven=True)
        self._chosen = _Chosen(self._own)
        self._experts = ExpertParallel(plain, group, self._chosen, table)
        self.layer.routed_experts = self._experts
        self.layer.to_empty(device=device)
        initialise(self.layer, seed, experts_of=lambda _name: self._experts.local_experts)
        if case["algorithm"] != "flat":
            self.baseline = self._run_flat

        rank, shape = context.group.rank, (case["batch"], case["sequence"], hidden)
        own = seed + 2 * rank
        self._input = fill(torch.empty(shape, dtype=dtype, device=device), own).requires_grad_(self._backward)
        self._upstream = fill(torch.empty(shape, dtype=dtype, device=device), own + 1)
        self.output = torch.full(shape, torch.nan, dtype=dtype, device=device)
        self.gradients: dict[str, torch.Tensor] = {}
        if GRADIENT_GROUP not in context.scratch:
            # Sums of gradients are under way while tokens are exchanged, so they have a group of their own.
            members = dist.get_process_group_ranks(group)
            context.scratch[GRADIENT_GROUP] = dist.new_group(members, backend=dist.get_backend(group))
        copies: Any = context.scratch[GRADIENT_GROUP]
        self._buckets = GradientBuckets(
            dict(self.layer.named_parameters()), lambda name: None if name.startswith(EXPERTS) else copies, dtype
        )
        self._oracle = LayerOracle(self.layer, seed, context.group.gather_objects)

    def run(self) -> None:
        self._chosen.dispatcher = self._own
        self._pass(self._upstream)

    def _run_flat(self) -> None:
        self._chosen.dispatcher = self._flat
        self._pass(self._upstream)

    def _pass(self, upstream: torch.Tensor) -> None:
        if not self._backward:
            with torch.no_grad():
                self.output = self.layer(self._input)
            return
        self._input.grad = None
        self._buckets.begin()
        self._buckets.last()
        output = self.layer(self._input)
        output.backward(upstream)
        self.gradients = self._buckets.finish()
        assert self._input.grad is not None
        self.gradients["input"] = self._input.grad
        self.output = output.detach()

    def check(self) -> int:
        """Wrong elements of outputs at some positions of each sequence, and of the gradients that they give.

        For the gradients the pass runs again, with an upstream gradient that is zero at all other positions,
        so that these few determine every gradient.
        """
        positions = sampled_positions(self._input.shape[1])
        wrong = self._oracle.wrong_outputs(self._input.detach(), self.output, positions)
        if self._backward:
            kept = torch.zeros_like(self._upstream)
            kept[:, positions] = self._upstream[:, positions]
            self._chosen.dispatcher = self._own
            self._pass(kept)
            wrong += self._oracle.wrong_gradients(self._input.detach(), kept, self.gradients, positions)
        return wrong

    def close(self) -> None:
        self._buckets.close()
        torch.set_num_threads(self._threads_before)


def sampled_positions(sequence: int) -> list[int]:
    """First, middle and last."""
    return sorted({0, sequence // 2, sequence - 1})


def _dispatcher(name: str, group: dist.ProcessGroup, placement: Placement) -> Dispatcher:
    if name == "dedup":
        return DedupDispatch(group, placement)
    return FlatDispatch(group, placement, make_all_to_all(name, group, placement))
