"""X-MoE: buffers without padding, a token to a node once, and sequence-sharded expert blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ciera_piper_core.alltoall.dedup import DedupDispatch
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.moe.sequence_sharded import SequenceSharded
from ciera_piper_core.systems.replicated import ReplicatedSystem, chosen_ep
from ciera_piper_core.systems.system import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.training.recipe import Recipe


class XMoESystem(ReplicatedSystem):
    """Expert and data parallelism with a deduplicating dispatch (arXiv 2508.13337).

    Rows of tokens are exchanged as they are, without padding, by ``alltoall.dedup``: between nodes a token
    goes to each node that has experts of it once. With ``tp``, neighbouring ranks have the same
    tokens outside of the expert blocks, and each takes its part of them through the blocks.
    """

    name: ClassVar[str] = "xmoe"
    summary: ClassVar[str] = "expert + data parallel, padding-free, a token crosses to a node once (after X-MoE)"
    options: ClassVar[Mapping[str, Option]] = {
        **ReplicatedSystem.options,
        "tp": Option(1, "ranks that have the same tokens, and share them in expert blocks (sequence sharding)"),
    }
    expert_axes: ClassVar[tuple[str, ...]] = ("ep", "tp")

    @classmethod
    def arrange(cls, recipe: Recipe, world: int, options: Mapping[str, Any]) -> dict[str, int]:
        """``dp``, ``ep`` and ``tp``, whose ranks are among those that share experts."""
        ep, tp = chosen_ep(recipe, world, options), int(options["tp"])
        if tp < 1 or ep % tp:
            raise ValueError(f"tp={tp} does not divide ep={ep}: ranks with the same tokens share experts too")
        return {"dp": world // ep, "ep": ep // tp, "tp": tp}

    def parallelise(self, model: Transformer) -> None:
        """Experts over all ranks of ``ep`` and ``tp``."""
        self.dispatcher = DedupDispatch(self.mesh.group(*self.expert_axes), self.mesh.placement(*self.expert_axes))
        self.mesh.group("tp")
        super().parallelise(model)

    def spread(self, name: str, plain: RoutedExperts) -> ExpertParallel:
        group, table = self.mesh.group(*self.expert_axes), self.table(plain.router.experts)
        if self.mesh.size("tp") == 1:
            return ExpertParallel(plain, group, self.dispatcher, table)
        return SequenceSharded(plain, group, self.dispatcher, self.mesh.group("tp"), table)
