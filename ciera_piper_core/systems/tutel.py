"""Tutel: capacity buffers, a two-level all-to-all, and a degree of overlap that is found out while training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.moe.capacity_buffers import DEGREES, CapacityBuffers
from ciera_piper_core.systems.replicated import ReplicatedSystem
from ciera_piper_core.systems.system import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class TutelSystem(ReplicatedSystem):
    """Expert and data parallelism through buffers of one size (arXiv 2206.03382).

    A ``capacity`` above 0 drops choices, counted over a rank's microbatch as Tutel does: then losses are
    those of another model, and depend on how the batch is cut. A resumed run tries degrees out again: it goes
    on to the last bit where ``degree`` is given, else to rounding.
    """

    name: ClassVar[str] = "tutel"
    summary: ClassVar[str] = "expert + data parallel, capacity buffers, two-level all-to-all, adaptive overlap"
    options: ClassVar[Mapping[str, Option]] = {
        **ReplicatedSystem.options,
        "capacity": Option(
            0.0, "capacity factor of an expert's buffer; 0: as much as is needed, nothing dropped", minimum=0
        ),
        "degree": Option(0, "parts of a buffer that overlap; 0: tried out in the first steps", (0, 1, 2, 4, 8)),
        "alltoall": Option(
            "two_phase", "two_phase (flat where nodes are one or uneven) or flat", ("two_phase", "flat")
        ),
    }

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        if not options.get("capacity", 0.0) >= 0:
            return f"capacity={options['capacity']} is below 0; choose 0 for room for all"
        return super().refusal(recipe, ranks, options)

    def parallelise(self, model: Transformer) -> None:
        """Experts over the ranks of ``ep``, all layers through one algorithm."""
        group, placement = self.mesh.group("ep"), self.mesh.placement("ep")
        several = placement.even and len(placement.nodes) > 1
        name = self.given["alltoall"] if several else "flat"
        self.algorithm = make_all_to_all(name, group, placement)
        super().parallelise(model)

    def spread(self, name: str, plain: RoutedExperts) -> CapacityBuffers:
        degree = int(self.given["degree"])
        return CapacityBuffers(
            plain,
            self.mesh.group("ep"),
            self.algorithm,
            self.table(plain.router.experts),
            capacity_factor=float(self.given["capacity"]),
            degrees=(degree,) if degree else DEGREES,
        )

    def close(self) -> None:
        for module in self.experts.values():
            if isinstance(module, CapacityBuffers):
                module.queue.close()
        super().close()
