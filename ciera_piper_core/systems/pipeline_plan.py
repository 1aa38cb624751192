"""How the pipelined systems spread over ranks: from their options, or as a plan of ``bench plan --export`` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ciera_piper_core.alltoall import ALGORITHMS
from ciera_piper_core.pipeline.mesh import MeshShape
from ciera_piper_core.pipeline.schedules import SCHEDULES, rank_stages, why_not
from ciera_piper_core.pipeline.settings import ExecutorSettings
from ciera_piper_core.pipeline.stages import Stages
from ciera_piper_core.systems.replicated import chosen_ep
from ciera_piper_core.systems.system import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.training.recipe import Recipe

OPTIONS: Mapping[str, Option] = {
    "pp": Option(2, "pipeline ranks", minimum=1),
    "ep": Option(0, "ranks of a pipeline stage that share its experts; 0: as many as divide both", minimum=0),
    "placement": Option(
        "even", "uneven: where ep does not divide the experts, some ranks hold one more", ("even", "uneven")
    ),
    "schedule": Option("1f1b", "order of microbatches in the pipeline", SCHEDULES),
    "alltoall": Option("halo_v1", "exchange of dispatch and combine; HALO is flat within one node", ALGORITHMS),
    "settings": Option("", "file of `bench plan --export executor`, which decides all of these"),
}


@dataclass(frozen=True)
class PipelinePlan:
    """See the module.

    Attributes:
        mesh: its shape. schedule: of ``pipeline.schedules``. stages: layers of stages, stages of ranks.
        alltoall: of ``alltoall.ALGORITHMS``. placement: of experts, ``even`` or ``uneven``.
    """

    mesh: MeshShape
    schedule: str
    stages: Stages
    alltoall: str
    placement: str

    @classmethod
    def of(cls, recipe: Recipe, world: int, options: Mapping[str, Any], zero_stages: tuple[int, ...]) -> PipelinePlan:
        """The plan of a system.

        Args:
            options: by the names of ``OPTIONS``.
            zero_stages: of the dense part, those that the system can run.

        Raises:
            ValueError: what does not fit, and what to change.
        """
        plan = cls._from_file(recipe, world, options, zero_stages) if options["settings"] else None
        plan = plan or cls._from_options(recipe, world, options)
        if reason := why_not(plan.schedule, plan.mesh.pp, recipe.microbatches, len(recipe.architecture.layers)):
            raise ValueError(reason)
        recipe.sequences_per_microbatch(plan.mesh.data_width)
        return plan

    @classmethod
    def _from_options(cls, recipe: Recipe, world: int, options: Mapping[str, Any]) -> PipelinePlan:
        pp, schedule = int(options["pp"]), str(options["schedule"])
        if pp < 1 or world % pp:
            raise ValueError(f"pp={pp} does not divide {world} ranks; choose a divisor of {world}")
        ep = chosen_ep(recipe, world // pp, options)
        layers = len(recipe.architecture.layers)
        # Before layers are dealt to stages, which not all numbers can be.
        if reason := why_not(schedule, pp, recipe.microbatches, layers):
            raise ValueError(reason)
        stages = Stages.evenly(layers, rank_stages(schedule, pp))
        mesh = MeshShape(pp, world // pp // ep, ep)
        return cls(mesh, schedule, stages, str(options["alltoall"]), str(options["placement"]))

    @classmethod
    def _from_file(
        cls, recipe: Recipe, world: int, options: Mapping[str, Any], zero_stages: tuple[int, ...]
    ) -> PipelinePlan:
        path = options["settings"]
        try:
            settings = ExecutorSettings.read(path)
        except OSError as error:
            raise ValueError(f"settings: {error}") from None
        if reason := settings.misfit(recipe, world, zero_stages):
            raise ValueError(f"{path}: {reason}")
        shape = settings.shape
        planned = {
            "pp": shape.pp,
            "ep": shape.ep,
            "placement": settings.placement,
            "schedule": settings.schedule_name,
            "alltoall": settings.algorithm,
        }
        for name, value in planned.items():
            # A default is no wish.
            if options[name] not in (value, OPTIONS[name].default):
                raise ValueError(f"{name} is {options[name]}, but {value} in {path}; leave the option out")
        return cls(shape, settings.schedule_name, settings.stages, settings.algorithm, settings.placement)
