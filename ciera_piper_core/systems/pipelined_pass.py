"""A step's passes through the pipeline of a data rank, and the loss over all of them: what pipelined systems share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.pipeline.executor import Executor, Microbatch
from ciera_piper_core.ranges import region
from ciera_piper_core.training.batches import share
from ciera_piper_core.training.build import DTYPES
from ciera_piper_core.training.health import Found, NonFiniteError, first_non_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.systems.pipeline_plan import PipelinePlan
    from ciera_piper_core.systems.rank_mesh import RankMesh
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class PipelinedPass:
    """Takes whole batches, gives their mean loss, and leaves gradients in ``grad`` of the parameters.

    Attributes:
        executor: of this rank's stages.
    """

    def __init__(
        self,
        model: Transformer,
        stages: Mapping[int, torch.nn.Module],
        recipe: Recipe,
        plan: PipelinePlan,
        ranks: Ranks,
        mesh: RankMesh,
    ) -> None:
        """
        Args:
            model: this rank's part of the plain one.
            stages: its stages, by number; parts of ``model``.
            mesh: with axes ``pp``, ``dp`` and ``ep``.
        """
        self._model, self._recipe, self._ranks = model, recipe, ranks
        self._width, self._data = plan.mesh.data_width, mesh.index("dp", "ep")
        self._stage = mesh.coordinate("pp")
        architecture = recipe.architecture
        shape = Microbatch(
            recipe.sequences_per_microbatch(self._width),
            recipe.sequence,
            architecture.hidden,
            architecture.output_vocab or architecture.vocab,
            DTYPES[recipe.precision],
        )
        self.executor = Executor(
            stages,
            plan.stages,
            plan.schedule,
            recipe.microbatches,
            shape,
            mesh.group("pp"),
            ranks.device,
            # In two parts it would compute a layer's activations again for each of its parameters.
            whole_backward=recipe.checkpointing == "full",
        )

    def step(self, batch: Tensor, loss_scale: float) -> float:
        """Forward and backward passes of this data rank's share (collective over all ranks).

        Returns:
            the mean loss over the whole batch, the same on all ranks. Gradients are those of ``loss_scale`` times
            that mean, once they are summed over data ranks.
        """
        weight = loss_scale / (self._recipe.microbatches * self._width)
        self.executor.loss_weight = weight
        self._model.auxiliary.value = weight
        return self._mean(self.executor.step(*self._share(batch)))

    def evaluate(self, batch: Tensor) -> float:
        """The mean loss without learning (collective over all ranks)."""
        return self._mean(self.executor.evaluate(*self._share(batch)))

    def require_finite(self, loss: float, step: int, run: Callable[[], object]) -> None:
        """Return if the loss is finite, else find the first stage and layer that are not (collective).

        Args:
            run: the forward pass once more, as the system makes it: with all that it gathers first.

        Raises:
            NonFiniteError: the same on all ranks.
        """
        if math.isfinite(loss):
            return
        # Weights first, on all ranks: one that stopped there would leave the others waiting in the pass.
        found = self._first(first_non_finite(self._model))
        if found.what == "value":
            found = self._first(first_non_finite(self._model, run))
        raise NonFiniteError(step, found.where, found.what)

    def _first(self, found: Found) -> Found:
        """The earliest that a rank of the earliest stage found: ranks of a stage infect each other."""
        everyone: list[tuple[int, Found]] = [(0, found)] * self._ranks.world
        dist.all_gather_object(everyone, (self._stage, found), group=self._ranks.group)
        named = [(stage, one.place, one) for stage, one in everyone if one.what != "value"]
        return min(named, key=lambda one: one[:2])[2] if named else found

    def _share(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        mine = share(batch, self._data, self._width)
        return mine[:, :-1], mine[:, 1:]

    def _mean(self, losses: list[Tensor]) -> float:
        """Over the losses of all ranks that have any: those of the last stage."""
        with region("loss"):
            total = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
            for loss in losses:
                total += loss
            dist.all_reduce(total, group=self._ranks.group)
            return total.item() / (self._recipe.microbatches * self._width)
