"""The real DeepSpeed ZeRO-3: every parameter, gradient and optimizer state in parts over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from ciera_piper_core.models.attention import CausalAttention
from ciera_piper_core.models.feed_forward import RoutedExperts
from ciera_piper_core.ranges import region
from ciera_piper_core.systems.deepspeed_engine import MASTER, MOMENTS, DeepSpeedSystem, adam_state, adamw
from ciera_piper_core.systems.hook_regions import AFTER, BEFORE, mark_hooks
from ciera_piper_core.systems.rank_mesh import device_mesh
from ciera_piper_core.systems.system import Layout, Option
from ciera_piper_core.training.build import build_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe

LEAVES = (RoutedExperts, CausalAttention)
"""Modules whose parameters are gathered together, before the module runs, whatever it then uses of them.

DeepSpeed gathers by modules, as they are called. Experts as modules of their own would be gathered by
those ranks alone whose tokens go there: ranks would wait for each other in different collectives, or
read each other's weights (deepspeedai/DeepSpeed#4808). Our experts are one stack, which every rank
uses, so here leaves save round trips; for both kinds of module they are what makes the order certain."""

BACKWARD = ("pre_sub_module_backward_function", "post_sub_module_backward_function")
"""DeepSpeed's methods that gather a module's parameters before its backward pass, and free them after."""
REDUCTIONS = ("reduce_independent_p_g_buckets_and_remove_grads", "independent_gradient_partition_epilogue")
"""DeepSpeed's methods that put a gradient into its bucket, reduce buckets that are full, and at last the rest."""


class Zero3System(DeepSpeedSystem):
    """DeepSpeed's engine at stage 3, with the plain model, the recipe's AdamW, and experts as leaf modules.

    ``qwz``, ``qgz`` and ``hpz`` are DeepSpeed's own ZeRO++ (arXiv 2306.10209); the first two are GPU kernels.
    Losses are then no longer those of ZeRO-3.
    """

    name: ClassVar[str] = "zero3"
    summary: ClassVar[str] = "DeepSpeed ZeRO-3: parameters, gradients and optimizer sharded over all ranks"
    options: ClassVar[Mapping[str, Option]] = {
        "persist": Option(
            100_000, "elements up to which a parameter stays whole on every rank (DeepSpeed's default)", minimum=0
        ),
        "overlap": Option(True, "reduce gradients while the backward pass goes on"),
        "hpz": Option(
            1, "ranks that share a second copy of the parameters, for the backward pass; 1 for none", minimum=1
        ),
        "qwz": Option(False, "gather parameters as 8-bit integers (a GPU kernel)"),
        "qgz": Option(False, "reduce gradients as 4-bit integers (a GPU kernel)"),
    }

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        if reason := super().refusal(recipe, ranks, options):
            return reason
        if (options["qwz"] or options["qgz"]) and ranks.device.type == "cpu":
            return "DeepSpeed quantises on GPUs only; on CPUs use zeropp, which computes the same formulas"
        if options["hpz"] < 1 or ranks.world % options["hpz"]:
            return f"hpz={options['hpz']} does not divide {ranks.world} ranks"
        return None

    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        if refused := self.refusal(recipe, ranks, options):
            raise ValueError(f"{self.name}: {refused}")
        self.recipe, self.ranks, self.given = recipe, ranks, dict(options)
        self.layout = Layout(dp=ranks.world, data_width=ranks.world, sharded="parameters, gradients, optimizer")
        self.data_rank, self.data_width = dist.get_rank(ranks.group), ranks.world
        self.mesh = device_mesh(ranks.group, ranks.device, "shard")
        deepspeed = self.connect()
        from deepspeed.utils import set_z3_leaf_modules

        self.model = build_model(recipe, device=ranks.device)
        whole = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        kinds = {type(part) for part in self.model.modules()}
        set_z3_leaf_modules(self.model, [kind for kind in LEAVES if kind in kinds])
        self.start(deepspeed, adamw(recipe, self.model.parameters()))
        self._mark_regions()
        # Its masters are copies of weights that it rounded first; those of all systems are not.
        with torch.no_grad():
            for name, weight in self._parameters().items():
                part = self._part(weight)
                first = whole[name].flatten()[self.data_rank * weight.ds_tensor.numel() :][: len(part)]
                part.copy_(first)

    def zero_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "stage": 3,
            "stage3_param_persistence_threshold": self.given["persist"],
            "overlap_comm": self.given["overlap"],
        }
        if self.given["hpz"] > 1:
            settings["zero_hpz_partition_size"] = self.given["hpz"]
        if self.given["qwz"]:
            settings["zero_quantized_weights"] = True
        if self.given["qgz"]:
            settings["zero_quantized_gradients"] = True
        return settings

    def full_parameters(self) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_fp32_param

        return self._on_rank_0(safe_get_full_fp32_param, 1.0)

    def full_gradients(self) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_grad

        return self._on_rank_0(safe_get_full_grad, 1 / self.loss_scale)

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": {
                f"{name}.{key}": self._sharded(weight, self._part(weight, key))
                for name, weight in self._parameters().items()
                for key in (MASTER, *MOMENTS)
            },
            "adam_steps": float(self._adam(0)["step"]),
            "buffers": self.buffers(),
            "scaler": self.scaler_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        optimizer = self.engine.optimizer
        # What is whole now would stay as it is.
        optimizer._partition_all_parameters()
        with torch.no_grad():
            for name, weight in self._parameters().items():
                for key in (MASTER, *MOMENTS):
                    self._part(weight, key).copy_(state["weights"][f"{name}.{key}"].to_local())
            for number in range(len(optimizer.fp32_partitioned_groups_flat)):
                self._adam(number)["step"].fill_(state["adam_steps"])
                # Working weights follow their masters, as after a step.
                optimizer._reassign_or_swap_out_partitioned_parameters(number)
            if optimizer.persistent_parameters:
                optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)
        self.load_buffers(state["buffers"])
        self.load_scaler_state(state["scaler"])
        self.steps = int(state["steps"])

    def _parameters(self) -> dict[str, Any]:
        """DeepSpeed's parameters, by the plain model's names."""
        return dict(self.model.named_parameters())

    def _adam(self, group: int) -> dict[str, Tensor]:
        """AdamW's state of a flat group."""
        optimizer = self.engine.optimizer
        return adam_state(optimizer.optimizer, optimizer.fp32_partitioned_groups_flat[group])

    def _part(self, weight: Any, key: str = MASTER) -> Tensor:
        """This rank's part of a parameter's master or moment, flat, without padding: a view."""
        optimizer = self.engine.optimizer
        group, offset, _ = optimizer.grad_position[optimizer.get_param_id(weight)]
        flat = optimizer.fp32_partitioned_groups_flat[group] if key == MASTER else self._adam(group)[key]
        each = weight.ds_tensor.numel()
        return flat.detach().narrow(0, offset, max(0, min(each, weight.ds_numel - self.data_rank * each)))

    def _sharded(self, weight: Any, part: Tensor) -> DTensor:
        """That part, as one of a flat tensor over all ranks, so that another number of ranks can load it."""
        return DTensor.from_local(
            part, self.mesh, [Shard(0)], run_check=False, shape=torch.Size([weight.ds_numel]), stride=(1,)
        )

    def _on_rank_0(self, whole_of: Any, factor: float) -> dict[str, Tensor]:
        whole = {}
        for name, weight in self._parameters().items():
            full = whole_of(weight)
            if self.data_rank == 0:
                whole[name] = full.detach().to("cpu", torch.float32, copy=True).mul_(factor)
        return whole

    def _mark_regions(self) -> None:
        """Name what DeepSpeed does between the model's own regions."""
        optimizer = self.engine.optimizer
        for module in self.model.modules():
            for kept in (BEFORE, AFTER):
                # They gather parameters, free them, and see to it that backward passes do so.
                mark_hooks(module, kept, "parameter_gather", _is_deepspeeds)
        offload = optimizer.parameter_offload
        for method in BACKWARD:
            setattr(offload, method, region("parameter_gather")(getattr(offload, method)))
        for method in REDUCTIONS:
            setattr(optimizer, method, region("gradient_reduce")(getattr(optimizer, method)))


def _is_deepspeeds(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("deepspeed.")
