"""Fully sharded data parallelism by torch's ``fully_shard``: a system, and the base of those that gather otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.ranges import region
from ciera_piper_core.systems.agreed_stop import stop_at_loss, stop_at_norm
from ciera_piper_core.systems.data_parallel import DataParallelSystem
from ciera_piper_core.systems.fsdp_regions import mark_regions
from ciera_piper_core.systems.rank_mesh import device_mesh
from ciera_piper_core.systems.system import Layout, Option
from ciera_piper_core.training.build import DTYPES, empty_model, tie_embeddings
from ciera_piper_core.training.gradient_norm import Spread, gradient_norm
from ciera_piper_core.training.health import check_batch
from ciera_piper_core.training.loss_scaling import LossScaler
from ciera_piper_core.training.optimizer import MasterWeights
from ciera_piper_core.training.update import apply_gradients

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class FSDPSystem(DataParallelSystem):
    """Every rank holds a part of each parameter, of its gradient and of the optimizer's state, in float32.

    A layer's parameters are gathered, in the recipe's precision, before its forward and its backward
    pass, and its gradients reduced after the latter. Embedding, last norm and output are a group of
    their own, gathered once for both passes. With microbatches, each rank sums its gradients, and they
    are reduced after the last.

    A subclass shards otherwise (``shard``), or changes how the sharded model communicates (``attach``).

    Attributes:
        model: the plain model, sharded.
        masters: float32 parts of this rank and the optimizer's state for them.
        scaler: of the loss, for float16.
        steps: updates so far.
    """

    name: ClassVar[str] = "fsdp"
    summary: ClassVar[str] = "torch's fully_shard: parameters, gradients and optimizer sharded over all ranks"
    options: ClassVar[Mapping[str, Option]] = {
        "reshard": Option(True, "free a layer's parameters after its forward pass and gather them again to go back"),
    }

    masters: MasterWeights
    scaler: LossScaler
    steps: int

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        try:
            recipe.sequences_per_microbatch(ranks.world)
        except ValueError as error:
            return str(error)
        return None

    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        if refused := self.refusal(recipe, ranks, options):
            raise ValueError(f"{self.name}: {refused}")
        self.recipe, self.ranks, self.options_given = recipe, ranks, dict(options)
        self.layout = Layout(
            dp=ranks.world,
            data_width=ranks.world,
            sharded="parameters, gradients, optimizer" if ranks.world > 1 else "",
        )
        self.data_rank, self.data_width = dist.get_rank(ranks.group), ranks.world
        self.steps = 0
        self.scaler = LossScaler(recipe.precision)
        self.mesh = device_mesh(ranks.group, ranks.device, "shard")
        self.model = self._sharded_model()
        mark_regions(self.model)
        # Masters and working weights are one: FSDP rounds what it gathers.
        self.masters = MasterWeights(self.model, recipe, precision=torch.float32)
        self.attach()

    @property
    def root(self) -> FSDPModule:
        """The model as FSDP2 sees it."""
        return cast("FSDPModule", self.model)

    def shard(self, module: torch.nn.Module, root: bool) -> None:
        """Apply ``fully_shard`` to a layer, or at last to the whole model for what is left.

        FSDP2 gathers the root once for both passes, whatever is asked for here.
        """
        reshard = False if root else self.options_given["reshard"]
        fully_shard(module, mesh=self.mesh, mp_policy=self.mixed_precision, reshard_after_forward=reshard)

    def attach(self) -> None:
        """Change how the sharded model communicates; nothing here."""

    @property
    def mixed_precision(self) -> MixedPrecisionPolicy:
        """The recipe's, as FSDP2 has it."""
        precision = DTYPES[self.recipe.precision]
        return MixedPrecisionPolicy(
            param_dtype=None if precision is torch.float32 else precision,
            reduce_dtype=DTYPES[self.recipe.gradient_precision],
        )

    def accumulate(self, batch: Tensor) -> float:
        check_batch(batch, self.recipe, self.steps)
        parts = self.microbatches(batch)
        scale = self.scaler.scale / len(parts)
        self.model.auxiliary.value = scale
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        for number, part in enumerate(parts):
            with region("gradient_reduce"):
                self.root.set_requires_gradient_sync(number == len(parts) - 1)
            loss = self.loss(part)
            with region("loss"):
                total += loss.detach()
                scaled = loss * scale
            scaled.backward()  # type: ignore[no-untyped-call]
            with region("loss"):
                # All that the passes kept goes with them.
                del loss, scaled
        with region("optimizer"):
            self.masters.collect_gradients()
        mean = self.mean_over_data(total / len(parts))
        if not self.scaler.dynamic:
            stop_at_loss(mean, self.steps, self.model, self.ranks.group, lambda: self.forward_only(parts))
        return mean

    def update(self) -> float:
        with region("optimizer"):
            gradients = self.masters.gradients()
            scaled_norm = gradient_norm([Spread(list(gradients.values()))])
            if not self.scaler.dynamic:
                stop_at_norm(scaled_norm, self.steps, gradients, self.ranks.group)
            norm = apply_gradients(
                self.model,
                self.masters,
                gradients,
                scaled_norm,
                self.scaler,
                self.recipe.clip_norm,
                (self.ranks.group,),
            )
        self.steps += 1
        return norm

    def forward_only(self, parts: Sequence[Tensor]) -> Tensor:
        total = super().forward_only(parts)
        # What FSDP2 keeps whole for a backward pass would be stale after the next update.
        self.root.reset_iter_state()
        return total

    def full_parameters(self) -> dict[str, Tensor]:
        return self._whole({name: weight.detach() for name, weight in self.masters.masters.items()})

    def full_gradients(self) -> dict[str, Tensor]:
        whole = self._whole(self.masters.gradients())
        return {name: gradient / self.scaler.scale for name, gradient in whole.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": self.masters.state_dict(),
            "buffers": self.buffers(),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.masters.load_state_dict(state["weights"])
        self.load_buffers(state["buffers"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = int(state["steps"])

    def _sharded_model(self) -> Transformer:
        """The model with its first weights, sharded layer by layer, so that no more than one is ever whole."""
        recipe, device = self.recipe, self.ranks.device
        model = empty_model(recipe, device="meta")
        for number, layer in model.layers.items():
            layer.to_empty(device=device)
            initialise(layer, recipe.seed, name_of=f"layers.{number}.{{}}".format)
            self.shard(layer, root=False)
        for name, part in model.named_children():
            if name != "layers":
                part.to_empty(device=device)
        tie_embeddings(model, recipe)
        rest = torch.nn.Module()
        for name, part in model.named_children():
            if name != "layers":
                rest.add_module(name, part)
        initialise(rest, recipe.seed)
        self.shard(model, root=True)
        # A parameter that no token of this rank came by takes part in the reduction with zeros.
        cast("FSDPModule", model).set_reduce_scatter_unused_params(True)
        return model

    def _whole(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        whole = {}
        for name, part in parts.items():
            full = part.full_tensor() if isinstance(part, DTensor) else part
            if self.data_rank == 0:
                whole[name] = full.to("cpu", torch.float32, copy=True)
        return whole
