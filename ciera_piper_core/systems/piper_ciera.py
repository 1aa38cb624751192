"""Piper with CIERA: what is copied over a stage's data ranks is sharded by FSDP2, and gathered compressed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ciera_piper_core.allgather.adaptive import AdaptiveCompression
from ciera_piper_core.allgather.fsdp import compress_all_gathers
from ciera_piper_core.allgather.fsdp_groups import fsdp_modules
from ciera_piper_core.allgather.plan import CodingSettings
from ciera_piper_core.pipeline.schedules import SINGLE_STAGE
from ciera_piper_core.systems.ciera import CODING_OPTIONS, SELECTION_OPTIONS
from ciera_piper_core.systems.expert_keys import split
from ciera_piper_core.systems.fsdp_regions import mark_regions
from ciera_piper_core.systems.gradient_buckets import GradientBuckets
from ciera_piper_core.systems.pipeline_plan import OPTIONS
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.rank_mesh import device_mesh
from ciera_piper_core.systems.system import Option
from ciera_piper_core.training.build import DTYPES
from ciera_piper_core.training.health import check_batch
from ciera_piper_core.training.optimizer import MasterWeights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

    from ciera_piper_core.allgather.fsdp import CompressedModel
    from ciera_piper_core.models.transformer import Transformer, TransformerLayer
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class PiperCieraSystem(PiperSystem):
    """Piper whose stages hold, between steps, a part of everything on each data rank.

    All but the experts is sharded over the ranks of a stage, experts over the ranks that hold the same ones.
    In a pipeline, every microbatch needs every parameter of its stage; so these are gathered once a step,
    when a stage is first needed, and gradients are reduced once, after its last microbatch: within a
    step a rank needs the memory of ZeRO 1. Experts stay where they are: they are sharded, which no migration knows.

    Attributes:
        compressed: by stage, its gathers: statistics, plans.
        adaptive: what finds out where that gains; None where nothing is compressed.
    """

    name: ClassVar[str] = "piper+ciera"
    summary: ClassVar[str] = "piper, its data-parallel part sharded and gathered by the compressed Allgather"
    options: ClassVar[Mapping[str, Option]] = {
        **OPTIONS,
        **CODING_OPTIONS,
        **SELECTION_OPTIONS,
        "codec": Option(True, "false: the same gathers, with nothing compressed"),
    }
    zero_stages: ClassVar[tuple[int, ...]] = (1,)

    compressed: dict[int, CompressedModel]
    adaptive: AdaptiveCompression | None = None

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        if recipe.architecture.tied_embeddings:
            return "an embedding that is tied to the output projection cannot be sharded with both; use system piper"
        return super().refusal(recipe, ranks, options)

    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        self._pending: dict[int, Any] = {}
        self._has_run = False
        super().__init__(recipe, ranks, options)
        self.layout = replace(self.layout, sharded="experts, parameters, gradients, optimizer")
        settings = CodingSettings(self.given["mode"], self.given["block"])
        only = None if self.given["codec"] else (lambda segment: False)
        self.compressed = {
            number: compress_all_gathers(stage, settings, only=only) for number, stage in self.stages.items()
        }
        if self.given["codec"]:
            steps = {name: self.given[name] for name in SELECTION_OPTIONS}
            self.adaptive = AdaptiveCompression(list(self.compressed.values()), **steps, group=ranks.group)

    @property
    def settled_after(self) -> int:
        """Steps of this process after which the way of gathering does not change any more: measure from there."""
        return self.adaptive.settled_after if self.adaptive else 0

    def make_masters(self, model: Transformer) -> MasterWeights:
        """The sharded weights themselves: FSDP2 rounds what it gathers."""
        return MasterWeights(model, self.recipe, precision=torch.float32)

    def logical(self, name: str, local: Tensor) -> dict[str, Tensor]:
        if not isinstance(local, DTensor) or not self.is_expert(name):
            return super().logical(name, local)
        rows, experts = local.to_local(), self.experts_of(name)
        # FSDP2 gives each rank as many rows as the first has, the last ones what is left.
        each = -(-len(experts) // self.mesh.size("dp"))
        first = min(each * self.mesh.coordinate("dp"), len(experts))
        return split(name, rows, experts[first : first + len(rows)])

    def accumulate(self, batch: Tensor) -> float:
        check_batch(batch, self.recipe, self.steps)
        self._has_run = True
        if self.adaptive:
            self.adaptive.before_step()
        if self.plan.schedule in SINGLE_STAGE:
            # The others do this themselves.
            self._gather()
        loss = self.passes.step(batch, self.scaler.scale)
        self.masters.collect_gradients()
        if not self.scaler.dynamic:
            self.passes.require_finite(loss, self.steps, lambda: self.evaluate(batch))
        return loss

    def update(self) -> float:
        norm = super().update()
        if self.adaptive:
            self.adaptive.after_step(applied=not math.isnan(norm))
        return norm

    def evaluate(self, batch: Tensor) -> float:
        self._has_run = True
        self._gather()
        loss = self.passes.evaluate(batch)
        self._release()
        return loss

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._release()
        weights = state["weights"]
        with torch.no_grad():
            for name in self.masters.masters:
                for part, tensor in self.masters.state(name).items():
                    if not tensor.dim():
                        tensor.copy_(next(weights[f"{key}.{part}"] for key in self._state_keys(name, tensor)))
                        continue
                    # Views, or the tensor itself.
                    for key, own in self._state_keys(name, tensor).items():
                        own.copy_(weights[f"{key}.{part}"])
        self.load_buffers(state["buffers"])
        self.masters.clear()
        self.scaler.load_state_dict(state["scaler"])
        self.steps = int(state["steps"])
        # Masters are written in place, which no hook of loading sees.
        for compressed in self.compressed.values():
            compressed.reset()

    def close(self) -> None:
        for compressed in self.compressed.values():
            compressed.remove()
        super().close()

    def _fill(self, model: Transformer) -> None:
        super()._fill(model)
        copies, data = self._device_mesh("dp"), self._device_mesh("dp", "ep")
        for stage in self.stages.values():
            for layer in stage.layers.values():
                experts = cast("TransformerLayer", layer).routed_experts
                if experts is not None:
                    self._shard(experts.experts, copies)
                    experts.register_forward_pre_hook(self._wait_for_experts)
                self._shard(layer, data)
            self._shard(stage, data)
            mark_regions(stage)

    def _device_mesh(self, *axes: str) -> DeviceMesh:
        return device_mesh(self.mesh.group(*axes), self.ranks.device, "_".join(axes))

    def _shard(self, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        """Shard what of the module is not sharded yet; gradients are summed, as the losses' weights have it."""
        precision = DTYPES[self.recipe.precision]
        policy = MixedPrecisionPolicy(
            param_dtype=None if precision is torch.float32 else precision,
            reduce_dtype=DTYPES[self.recipe.gradient_precision],
        )
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        sharded = cast("FSDPModule", module)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
        # A parameter that no token came by takes part in the reduction with zeros.
        sharded.set_reduce_scatter_unused_params(True)

    def _buckets(self) -> GradientBuckets:
        """None: FSDP reduces gradients."""
        return GradientBuckets({}, self.gradient_group, torch.float32)

    def _to_show(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        if self.is_expert(name):
            return self.logical(name, tensor)
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return {name: whole} if self.data_rank == 0 else {}

    def _gather(self) -> None:
        """Begin to gather all parameters of this rank's stages; who needs them first waits."""
        self._pending = {
            id(module): module.unshard(async_op=True)
            for stage in self.stages.values()
            for module in fsdp_modules(stage)
        }

    def _release(self) -> None:
        """Give up what was gathered; it would be stale after the next update."""
        if not self._has_run:
            # FSDP2 has nothing to reset before its first pass, and no place where it could be (torch 2.13).
            return
        for stage in self.stages.values():
            cast("FSDPModule", stage).reset_iter_state()
            for module in fsdp_modules(stage):
                module.reshard()

    def _wait_for_experts(self, module: torch.nn.Module, inputs: object) -> None:
        """The stacks of experts have no forward pass, in which FSDP would wait for them by itself."""
        handle = self._pending.pop(id(module.experts), None)
        if handle is not None:
            handle.wait()
