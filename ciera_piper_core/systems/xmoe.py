"""X-MoE: buffers without padding, a token to a node once, and sequence-sharded expert blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ciera_piper_core.alltoall.dedup import DedupDispatch
from ciera_piper_core.models.tensor_collectives import TensorRanks
from ciera_piper_core.models.tensor_parallel import cut_model, cut_refusal
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.moe.sequence_sharded import SequenceSharded
from ciera_piper_core.systems.replicated import ReplicatedSystem, chosen_ep
from ciera_piper_core.systems.system import Option
from ciera_piper_core.systems.ted import TedSystem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.training.recipe import Recipe


class XMoESystem(TedSystem):
    """Expert and data parallelism with a deduplicating dispatch (arXiv 2508.13337).

    Rows of tokens are exchanged as they are, without padding, by ``alltoall.dedup``: between nodes a token
    goes to each node that has experts of it once. With ``tp``, neighbouring ranks share the matrices
    outside of the expert blocks, as TED's do, and so have the same tokens; into the blocks each takes
    its part of them, and experts are whole.
    """

    name: ClassVar[str] = "xmoe"
    summary: ClassVar[str] = "expert + data parallel, padding-free, a token crosses to a node once (after X-MoE)"
    options: ClassVar[Mapping[str, Option]] = {
        **ReplicatedSystem.options,
        "tp": Option(1, "ranks, among those of ep, that share all other matrices and expert blocks' tokens", minimum=1),
    }
    expert_axes: ClassVar[tuple[str, ...]] = ("ep", "tp")

    @classmethod
    def arrange(cls, recipe: Recipe, world: int, options: Mapping[str, Any]) -> dict[str, int]:
        """``dp``, ``ep`` and ``tp``, whose ranks are among those that share experts.

        Raises:
            ValueError: they do not fit, or the model cannot be cut.
        """
        ep, tp = chosen_ep(recipe, world, options), int(options["tp"])
        if tp < 1 or ep % tp:
            raise ValueError(f"tp={tp} does not divide ep={ep}: ranks with the same tokens share experts too")
        if tp > 1 and recipe.optimizer == "adafactor":
            raise ValueError(f"adafactor keeps means over whole matrices, which tp={tp} cuts; use adam, or tp=1")
        if tp > 1 and (reason := cut_refusal(_experts_apart(recipe.architecture, tp), tp)):
            raise ValueError(reason)
        return {"dp": world // ep, "ep": ep // tp, "tp": tp}

    def parallelise(self, model: Transformer) -> None:
        """Spread the experts over all ranks of ``ep`` and ``tp``; cut all else over ``tp``."""
        group = self.mesh.group("tp")
        self.tensor, self.cuts = TensorRanks.of(group), {}
        self.dedup = DedupDispatch(self.mesh.group(*self.expert_axes), self.mesh.placement(*self.expert_axes))
        ReplicatedSystem.parallelise(self, model)
        if self.mesh.size("tp") > 1:
            self.cuts = cut_model(model, group)
            self._head = "output.weight" if "output.weight" in self.cuts else "embedding.weight"

    def spread(self, name: str, plain: RoutedExperts) -> ExpertParallel:
        group, table = self.mesh.group(*self.expert_axes), self.table(plain.router.experts)
        if self.mesh.size("tp") == 1:
            return ExpertParallel(plain, group, self.dedup, table)
        return SequenceSharded(plain, group, self.dedup, self.mesh.group("tp"), table)

    def loss(self, part: Tensor) -> Tensor:
        return super().loss(part) if self.cuts else ReplicatedSystem.loss(self, part)


def _experts_apart(architecture: Architecture, tp: int) -> Architecture:
    """The architecture with routed experts of a width that can be cut: they stay whole, so theirs does not matter."""
    layers = tuple(
        layer if layer.experts is None else replace(layer, experts=replace(layer.experts, ffn=64 * tp))
        for layer in architecture.layers
    )
    return replace(architecture, layers=layers)
