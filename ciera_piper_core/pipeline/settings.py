"""Reads the settings that ``bench plan --export executor`` writes, and refuses what does not fit a training by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciera_piper_core.pipeline.mesh import MeshShape
from ciera_piper_core.pipeline.schedules import rank_stages, schedule_named, why_not
from ciera_piper_core.pipeline.stages import Stages
from ciera_piper_core.planner.export import SETTINGS_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.training.recipe import Recipe

ALLTOALL = {"flat": "flat", "two_phase": "two_phase", "halo": "halo_v1"}
"""Of a plan's all-to-all the algorithm that runs it: plans do not tell HALO's variants apart."""


@dataclass(frozen=True)
class ExecutorSettings:
    """A plan, as the executor runs it; attributes are the file's keys (see ``planner.export.executor_settings``).

    Raises:
        ValueError: a mesh, stages or a schedule that contradict each other; says which.
    """

    version: int
    model: str
    gpus: int
    mesh: Mapping[str, int]
    schedule: str
    stage_layers: list[list[int]]
    rank_stages: list[list[int]]
    microbatches: int
    sequences_per_microbatch: int
    sequences_per_gpu: int
    global_batch: int
    sequence: int
    checkpointing: str
    zero_stage: int
    alltoall: str
    placement: str
    optimizer: str
    precision: str
    flash: bool

    def __post_init__(self) -> None:
        if self.version != SETTINGS_VERSION:
            raise ValueError(
                f"version is {self.version}; this executor reads {SETTINGS_VERSION}: export the plan again"
            )
        if sorted(self.mesh) != ["dp", "ep", "pp", "tp"]:
            raise ValueError(f"mesh needs pp, dp, ep and tp, not {', '.join(self.mesh)}")
        if self.mesh["tp"] != 1:
            raise ValueError(f"mesh: tp is {self.mesh['tp']}; the executor has no tensor parallelism: plan with tp=1")
        if self.shape.world != self.gpus:
            raise ValueError(f"mesh has {self.shape.world} places, but gpus is {self.gpus}")
        if self.alltoall not in ALLTOALL:
            raise ValueError(f"alltoall is {self.alltoall!r}; known: {', '.join(ALLTOALL)}")
        if self.placement not in ("even", "uneven"):
            raise ValueError(f"placement is {self.placement!r}; known: even, uneven")
        if self.stages.of_rank != (expected := rank_stages(self.schedule_name, self.shape.pp)):
            raise ValueError(
                f"rank_stages is {self.rank_stages}; {self.schedule} has {[list(held) for held in expected]}"
            )
        if reason := why_not(self.schedule_name, self.shape.pp, self.microbatches, self.stages.layer_count):
            raise ValueError(f"schedule: {reason}")

    @classmethod
    def read(cls, path: Path | str) -> ExecutorSettings:
        """The settings of a file.

        Raises:
            ValueError: no JSON object, keys that are missing or unknown, or values of another type; names them.
            OSError: the file cannot be read.
        """
        try:
            text = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: no JSON: {error}") from None
        try:
            return cls._checked(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def _checked(cls, text: Any) -> ExecutorSettings:
        if not isinstance(text, dict):
            raise ValueError("executor settings are a JSON object")
        kinds: dict[str, Any] = {
            "int": int,
            "str": str,
            "bool": bool,
            "list[list[int]]": list,
            "Mapping[str, int]": dict,
        }
        known = {field.name: kinds[str(field.type)] for field in fields(cls)}
        if unknown := sorted(text.keys() - known.keys()):
            raise ValueError(f"unknown key {unknown[0]!r}; known: {', '.join(known)}")
        if missing := [name for name in known if name not in text]:
            raise ValueError(f"{missing[0]!r} is missing; export the plan again")
        for name, kind in known.items():
            if type(text[name]) is not kind:
                raise ValueError(f"{name} is {text[name]!r}; it must be of type {kind.__name__}")
        if any(type(size) is not int for size in text["mesh"].values()):
            raise ValueError(f"mesh is {text['mesh']!r}; its sizes must be whole numbers")
        for name in ("stage_layers", "rank_stages"):
            if not all(isinstance(held, list) and all(type(one) is int for one in held) for held in text[name]):
                raise ValueError(f"{name} is {text[name]!r}; it must be lists of whole numbers")
        return cls(**text)

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        return MeshShape(self.mesh["pp"], self.mesh["dp"], self.mesh["ep"])

    @property
    def schedule_name(self) -> str:
        """The schedule as ``pipeline.schedules`` has it."""
        return schedule_named(self.schedule)

    @property
    def stages(self) -> Stages:
        """Layers of stages, and stages of ranks."""
        return Stages(tuple(tuple(held) for held in self.stage_layers), tuple(tuple(held) for held in self.rank_stages))

    @property
    def algorithm(self) -> str:
        """The all-to-all algorithm, as ``alltoall.ALGORITHMS`` has it."""
        return ALLTOALL[self.alltoall]

    def misfit(self, recipe: Recipe, world: int, zero_stages: tuple[int, ...]) -> str | None:
        """What of a training is not as planned, and how to mend it, in one line; None if it fits.

        Args:
            zero_stages: those that the system that asks can run.
        """
        pairs = {
            "model": (self.model, recipe.architecture.name),
            "layers": (self.stages.layer_count, len(recipe.architecture.layers)),
            "gpus": (self.gpus, world),
            "global_batch": (self.global_batch, recipe.global_batch),
            "microbatches": (self.microbatches, recipe.microbatches),
            "sequence": (self.sequence, recipe.sequence),
            "checkpointing": (self.checkpointing, recipe.checkpointing),
            "optimizer": (self.optimizer, recipe.optimizer),
            "precision": (self.precision, recipe.precision),
        }
        for name, (planned, given) in pairs.items():
            if planned != given:
                return f"{name} is {planned} in the plan and {given} in the training; change one of them"
        if self.zero_stage not in zero_stages:
            able = " or ".join(map(str, zero_stages))
            return f"zero_stage is {self.zero_stage} in the plan; this system has {able}: plan with that (--set)"
        experts = {layer.experts.experts for layer in recipe.architecture.layers if layer.experts is not None}
        if self.placement == "even" and any(count % self.shape.ep for count in experts):
            return f"ep={self.shape.ep} does not divide {sorted(experts)} experts, and the plan's placement is even"
        return None
