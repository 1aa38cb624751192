"""Piper: a pipeline of stages whose experts are spread over neighbouring ranks, with a hierarchical all-to-all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.pipeline.stages import keep_rank, stage_module
from ciera_piper_core.systems import expert_migration
from ciera_piper_core.systems.expert_keys import joined
from ciera_piper_core.systems.pipeline_plan import OPTIONS, PipelinePlan
from ciera_piper_core.systems.pipelined_pass import PipelinedPass
from ciera_piper_core.systems.replicated import ReplicatedSystem
from ciera_piper_core.training.gradient_norm import Spread, gradient_norm
from ciera_piper_core.training.health import check_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.systems.system import Option, Ranks
    from ciera_piper_core.training.recipe import Recipe

EMBEDDING, OUTPUT = "embedding.weight", "output.weight"


class PiperSystem(ReplicatedSystem):
    """Pipeline x data x expert parallelism on ``torch.distributed.pipelining``.

    Ranks that share experts are neighbours, and run the same microbatches in the same order. Microbatches
    are those of the recipe; a schedule that needs more of them than there are is refused. With option
    ``migrate``, experts move within their group when it pays; each stage decides for itself.

    Attributes:
        plan: mesh, schedule, stages, all-to-all.
        stages: modules of this rank's stages, by number; parts of ``model``.
        passes: of a step through the pipeline.
    """

    name: ClassVar[str] = "piper"
    summary: ClassVar[str] = "pipeline x expert x data parallel, HALO all-to-all, expert migration"
    options: ClassVar[Mapping[str, Option]] = {**OPTIONS, **expert_migration.OPTIONS}
    zero_stages: ClassVar[tuple[int, ...]] = (0,)

    plan: PipelinePlan
    stages: dict[int, Transformer]
    passes: PipelinedPass

    @classmethod
    def arrange(cls, recipe: Recipe, world: int, options: Mapping[str, Any]) -> dict[str, int]:
        """``pp``, ``dp`` and ``ep``, as a plan's mesh has them."""
        return PipelinePlan.of(recipe, world, options, cls.zero_stages).mesh.sizes

    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        super().__init__(recipe, ranks, options)
        self.layout = replace(self.layout, pp=self.plan.mesh.pp)
        self.passes = PipelinedPass(self.model, self.stages, recipe, self.plan, ranks, self.mesh)

    def parallelise(self, model: Transformer) -> None:
        """This rank's stages, and of their experts its own."""
        self.plan = PipelinePlan.of(self.recipe, self.ranks.world, self.given, self.zero_stages)
        self.given["placement"] = self.plan.placement
        self.mesh.group("pp")
        self._tie = _tie_group(self.recipe, self.plan, self.ranks)
        keep_rank(model, self.plan.stages, self.mesh.coordinate("pp"))
        group, placement = self.mesh.group("ep"), self.mesh.placement("ep")
        self.dispatcher = FlatDispatch(group, placement, make_all_to_all(self.plan.alltoall, group, placement))
        super().parallelise(model)

    def spread(self, name: str, plain: RoutedExperts) -> ExpertParallel:
        return ExpertParallel(plain, self.mesh.group("ep"), self.dispatcher, self.table(plain.router.experts))

    def initialise(self, model: Transformer) -> None:
        initialise(model, self.recipe.seed, name_of=self.plain_name, experts_of=self.experts_of)

    def plain_name(self, name: str) -> str:
        """Of a parameter in the plain model, where an output projection that is tied is the embedding."""
        return EMBEDDING if self._tie is not None and name == OUTPUT else name

    def gradient_group(self, name: str) -> dist.ProcessGroup | None:
        return self._tie if self._tied_copy(name) else super().gradient_group(name)

    def logical(self, name: str, local: Tensor) -> dict[str, Tensor]:
        return super().logical(self.plain_name(name), local)

    def accumulate(self, batch: Tensor) -> float:
        check_batch(batch, self.recipe, self.steps)
        self.gradients.begin()
        loss = self.passes.step(batch, self.scaler.scale)
        self.take_gradients()
        if not self.scaler.dynamic:
            self.passes.require_finite(loss, self.steps, lambda: self.evaluate(batch))
        return loss

    def evaluate(self, batch: Tensor) -> float:
        return self.passes.evaluate(batch)

    def whole(self, local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mine = {key: part for name, tensor in local.items() for key, part in self._to_show(name, tensor).items()}
        mine = {key: part.detach().to("cpu", torch.float32, copy=True) for key, part in mine.items()}
        everyone: list[Any] | None = [None] * self.ranks.world if self.mesh.rank == 0 else None
        dist.gather_object(mine, everyone, group=self.ranks.group, group_dst=0)
        return {} if everyone is None else _stacked({key: part for one in everyone for key, part in one.items()})

    def close(self) -> None:
        super().close()
        if self._tie is not None:
            dist.destroy_process_group(self._tie)

    def _fill(self, model: Transformer) -> None:
        super()._fill(model)
        # Parts of the model as it is with memory: what is on the meta device has other parameters.
        held = self.plan.stages.of_rank[self.mesh.coordinate("pp")]
        self.stages = {stage: stage_module(model, self.plan.stages, stage) for stage in held}

    def _to_show(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """What this rank gives of a parameter when it is put together on rank 0, by key: each part once."""
        first = self.mesh.coordinate("dp") == 0 if self.is_expert(name) else self.data_rank == 0
        return self.logical(name, tensor) if first else {}

    def _tied_copy(self, name: str) -> bool:
        return self._tie is not None and name in (EMBEDDING, OUTPUT)

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Over all ranks, each parameter once; on every rank the same sums, also where a stage has no experts."""
        pipeline = self.mesh.group("pp")
        # Of a tied pair, the embedding counts.
        counted = {name: gradient for name, gradient in gradients.items() if self.plain_name(name) == name}
        experts = [gradient for name, gradient in counted.items() if self.is_expert(name)]
        others = [gradient for name, gradient in counted.items() if not self.is_expert(name)]
        return gradient_norm(
            [Spread(others, (pipeline,)), Spread(experts, (self.mesh.group(*self.expert_axes), pipeline))]
        )


def _tie_group(recipe: Recipe, plan: PipelinePlan, ranks: Ranks) -> dist.ProcessGroup | None:
    """All ranks of the first and the last stage, where one's embedding is the other's output projection (collective).

    None on other ranks, and where one rank has both stages: there they are one parameter.
    """
    first, last = plan.stages.rank_of(0), plan.stages.rank_of(plan.stages.count - 1)
    if not recipe.architecture.tied_embeddings or first == last:
        return None
    everyone = dist.get_process_group_ranks(ranks.group)
    members = [rank for rank in range(ranks.world) if plan.mesh.coordinates(rank)[0] in (first, last)]
    made = dist.new_group([everyone[rank] for rank in members], backend=dist.get_backend(ranks.group))
    return made if dist.get_rank(ranks.group) in members else None


def _stacked(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows of experts, which are keys with a number at the end, put together to the plain model's stacks."""
    stacks: dict[str, dict[str, Tensor]] = {}
    whole = {}
    for key, part in parts.items():
        name, _, number = key.rpartition(".")
        if number.isdecimal():
            stacks.setdefault(name, {})[key] = part
        else:
            whole[key] = part
    return whole | {name: joined(name, rows) for name, rows in stacks.items()}
