"""ZeRO++ on FSDP2: int8 weights and two-level int4 gradients on the wire, and a second copy of weights in each node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch.distributed.fsdp import FSDPModule, fully_shard

from ciera_piper_core.allgather.fsdp_groups import parameter_groups
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.quantised_collectives import (
    NodeGroups,
    QuantisedAllGather,
    QuantisedReduceScatter,
    gradient_parts,
)
from ciera_piper_core.systems.system import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class ZeroPlusPlus(FSDPSystem):
    """The three parts of ZeRO++, each with a switch; with all of them off it is ``fsdp``.

    Weights: every gather carries int8 codes, so all ranks compute with the same rounded weights; masters
    stay exact. Secondary copy: after its forward pass a layer keeps its share of a node's copy, and is
    gathered again within the node. Gradients: ``quantised_collectives``.

    Losses differ from exact ones by what rounding the weights does; ``quantisation.rounding_bound`` says how
    far a weight may be off, ``reduction_bound`` how far a gradient.

    Attributes:
        gathers, reductions: by parameter group, its collectives, which count bytes; empty where switched off.
    """

    name: ClassVar[str] = "zeropp"
    summary: ClassVar[str] = "ZeRO++: int8 weight gathers, int4 two-level gradients, secondary copy in each node"
    options: ClassVar[Mapping[str, Option]] = {
        **FSDPSystem.options,
        "qwz": Option(True, "gather weights as int8"),
        "qgz": Option(True, "reduce gradients as int4, within nodes and then between them"),
        "hpz": Option(True, "keep a secondary copy in each node, for the backward pass"),
        "weight_block": Option(0, "values of a block of weights; 0 for DeepSpeed's rule, about 8000", minimum=0),
        "gradient_block": Option(
            0, "values of a block of gradients; 0 for DeepSpeed's rule, a matrix' shorter side", minimum=0
        ),
    }
    loss_tolerance: ClassVar[float] = 0.02

    gathers: dict[str, QuantisedAllGather]
    reductions: dict[str, QuantisedReduceScatter]

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        if refused := super().refusal(recipe, ranks, options):
            return refused
        for name in ("weight_block", "gradient_block"):
            if options[name] < 0:
                return f"{name} must be 0 or more, not {options[name]}"
        if (options["qgz"] or options["hpz"]) and not ranks.placement.even:
            return f"qgz and hpz need nodes of one size, not {ranks.placement.describe()}; set both to false"
        if options["hpz"] and len(ranks.placement.nodes) > 1 and not ranks.placement.by_block:
            return "hpz needs the ranks of a node to be neighbours; number them node by node, or set hpz=false"
        return None

    def shard(self, module: torch.nn.Module, root: bool) -> None:
        per_node = self.ranks.placement.ranks_per_node
        secondary = self.options_given["hpz"] and self.options_given["reshard"] and 1 < per_node < self.ranks.world
        if root or not secondary:
            # A node of one rank would keep all weights whole, which FSDP2 can do without a second copy.
            super().shard(module, root)
            return
        fully_shard(module, mesh=self.mesh, mp_policy=self.mixed_precision, reshard_after_forward=per_node)

    def attach(self) -> None:
        self.gathers, self.reductions = {}, {}
        self._nodes = NodeGroups(self.ranks.group, self.ranks.placement) if self.options_given["qgz"] else None
        for group in parameter_groups(self.model):
            module = cast("FSDPModule", group.fsdp.modules[0])
            if self.options_given["qwz"]:
                self.gathers[group.name] = QuantisedAllGather(self.options_given["weight_block"])
                module.set_custom_all_gather(self.gathers[group.name])
            if self._nodes is not None:
                parts = gradient_parts(group.parameters, self.ranks.world, self.options_given["gradient_block"])
                self.reductions[group.name] = QuantisedReduceScatter(parts, self._nodes)
                module.set_custom_reduce_scatter(self.reductions[group.name])

    def close(self) -> None:
        if self._nodes is not None:
            self._nodes.close()
        super().close()
