"""Training whose dense part every data rank holds whole, and whose experts are spread: a base of several systems.

A subclass says how tokens reach their experts (``spread``) and, if need be, how ranks are arranged
(``arrange``) and what else is done to the plain model (``parallelise``). The rest is here: the
same weights as every system, microbatches, sums of gradients, master weights, clipping, checkpoints.

Gradients: a rank's loss is weighted ``1 / (microbatches * data_width)``, and nothing else is ever
divided. Copied parameters are summed over all data ranks. Experts have, after the backward pass,
the gradient of all tokens of their expert-parallel group, and are summed over the groups.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
import torch.distributed as dist

from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.moe.expert_parallel import ExpertParallel, spread_experts
from ciera_piper_core.moe.expert_table import ExpertTable, contiguous_table
from ciera_piper_core.ranges import region
from ciera_piper_core.systems import expert_migration
from ciera_piper_core.systems.agreed_stop import stop_at_loss, stop_at_norm
from ciera_piper_core.systems.data_parallel import DataParallelSystem
from ciera_piper_core.systems.expert_keys import joined, split
from ciera_piper_core.systems.gradient_buckets import GradientBuckets
from ciera_piper_core.systems.rank_mesh import RankMesh
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

    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class Migration(Protocol):
    """Moves experts between steps (``moe.migration``)."""

    def maybe_migrate(self, step: int) -> Sequence[object]:
        """Called after the update of step ``step`` (from 0) on all ranks; what was moved or looked at."""


class ReplicatedSystem(DataParallelSystem):
    """See the module.

    Class attributes:
        data_axes: of the mesh, that a batch is split over.
        expert_axes: that the experts of a layer are spread over.

    Attributes:
        model: this rank's part of the plain model: working copies in the recipe's precision.
        mesh: axes ``dp`` and ``ep``, unless ``arrange`` chose others.
        data_width: ranks that a batch is split over. data_rank: this rank's place among them.
        experts: the expert-parallel modules, by their names in the plain model (``layers.3.routed_experts``).
        masters: float32 masters and the optimizer's state.
        gradients: sums them.
        scaler: of the loss, for float16.
        migration: None, or what moves experts after a step; set it after building.
        steps: updates so far.
    """

    options: ClassVar[Mapping[str, Option]] = {
        "ep": Option(0, "ranks that share a layer's experts; 0: as many as divide both", minimum=0),
        "placement": Option(
            "even", "uneven: where ep does not divide the experts, some ranks hold one more", ("even", "uneven")
        ),
        **expert_migration.OPTIONS,
    }
    data_axes: ClassVar[tuple[str, ...]] = ("dp", "ep")
    expert_axes: ClassVar[tuple[str, ...]] = ("ep",)

    mesh: RankMesh
    experts: dict[str, ExpertParallel]
    masters: MasterWeights
    gradients: GradientBuckets
    scaler: LossScaler
    migration: Migration | None
    steps: int

    @classmethod
    def arrange(cls, recipe: Recipe, world: int, options: Mapping[str, Any]) -> dict[str, int]:
        """Sizes of the mesh's axes, slowest first; here ``dp`` and ``ep``, from the option ``ep``.

        Raises:
            ValueError: they do not fit; says what to change. ``refusal`` is this message.
        """
        ep = chosen_ep(recipe, world, options)
        return {"dp": world // ep, "ep": ep}

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        try:
            expert_migration.policy_of(options)
            sizes = cls.arrange(recipe, ranks.world, options)
            recipe.sequences_per_microbatch(math.prod(sizes[axis] for axis in cls.data_axes))
        except ValueError as error:
            return str(error)
        return None

    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        if refused := self.refusal(recipe, ranks, options):
            raise ValueError(f"{self.name}: {refused}")
        self.recipe, self.ranks, self.given = recipe, ranks, dict(options)
        sizes = self.arrange(recipe, ranks.world, options)
        self.mesh = RankMesh(ranks, sizes)
        # Made here in one order on all ranks, whoever asks for which first.
        for axes in (self.data_axes, self.expert_axes, self._copy_axes):
            self.mesh.group(*axes)
        self.data_width, self.data_rank = self.mesh.size(*self.data_axes), self.mesh.index(*self.data_axes)
        self.layout = Layout(
            ep=self.mesh.size(*self.expert_axes),
            dp=sizes.get("dp", 1),
            tp=sizes.get("tp", 1),
            data_width=self.data_width,
            sharded="experts" if self.mesh.size(*self.expert_axes) > 1 and recipe.architecture.has_experts else "",
        )
        self.steps, self.migration = 0, None
        self.scaler = LossScaler(recipe.precision)
        self.experts = {}
        self.model = empty_model(recipe, device="meta")
        self.parallelise(self.model)
        self._fill(self.model)
        self.masters = self.make_masters(self.model)
        self.gradients = self._buckets()
        if (policy := expert_migration.policy_of(options)) is not None:
            expert_migration.attach(self, policy)

    # What subclasses change.

    def parallelise(self, model: Transformer) -> None:
        """Change the plain model, on the meta device, before it has weights: here every layer's experts are spread.

        A subclass that does more calls this too.
        """
        self.experts = spread_experts(model, self.spread)

    def spread(self, name: str, plain: RoutedExperts) -> ExpertParallel:
        """What takes the place of the routed experts of that name."""
        raise NotImplementedError

    def initialise(self, model: Transformer) -> None:
        """Give the model the first weights of the recipe's seed; it has memory, but no values."""
        initialise(model, self.recipe.seed, experts_of=self.experts_of)

    def make_masters(self, model: Transformer) -> MasterWeights:
        """Masters of the model's first weights, which are rounded to the recipe's precision."""
        return MasterWeights(model, self.recipe)

    def gradient_group(self, name: str) -> dist.ProcessGroup | None:
        """The ranks that the gradient of a parameter is summed over; None for none."""
        axes = self._copy_axes if self.is_expert(name) else self.data_axes
        return self.mesh.group(*axes) if axes else None

    def norm_groups(self, name: str) -> tuple[dist.ProcessGroup, ...]:
        """The ranks that hold other parts of a parameter, whose squares are added to those of this one's."""
        return (self.mesh.group(*self.expert_axes),) if self.is_expert(name) else ()

    def logical(self, name: str, local: Tensor) -> dict[str, Tensor]:
        """This rank's part of a parameter (or of its gradient, or state) by the keys of a checkpoint.

        A stack of experts is one key an expert, ``layers.3.routed_experts.experts.up.17``; all else is itself.
        """
        if not self.is_expert(name):
            return {name: local}
        return split(name, local, self.experts_of(name))

    def whole(self, local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters by the plain model's names on rank 0, on the CPU, in float32; elsewhere empty (collective).

        Args:
            local: by this rank's names; the same names on all ranks.
        """
        result = {}
        first_copy = all(self.mesh.coordinate(axis) == 0 for axis in self.mesh.sizes if axis not in self.expert_axes)
        for name, tensor in local.items():
            if not self.is_expert(name):
                if self.mesh.rank == 0:
                    result[name] = tensor.detach().to("cpu", torch.float32, copy=True)
                continue
            mine = {key: part.detach().float().cpu().clone() for key, part in self.logical(name, tensor).items()}
            everyone: list[Any] | None = [None] * self.ranks.world if self.mesh.rank == 0 else None
            dist.gather_object(mine if first_copy else {}, everyone, group=self.ranks.group, group_dst=0)
            if everyone is not None:
                result[name] = joined(name, {key: part for one in everyone for key, part in one.items()})
        return result

    # What is the same in all of them.

    def table(self, experts: int) -> ExpertTable:
        """The first placement of so many experts on the ranks that share them, by the option ``placement``."""
        ranks = self.mesh.size(*self.expert_axes)
        return contiguous_table(experts, ranks, uneven=self.given.get("placement") == "uneven")

    def is_expert(self, name: str) -> bool:
        """Whether a parameter is a stack of experts that are spread."""
        return name.rpartition(".experts.")[0] in self.experts

    def experts_of(self, name: str) -> tuple[int, ...]:
        """The experts in this rank's stack of that name, in their order."""
        return self.experts[name.rpartition(".experts.")[0]].local_experts

    def accumulate(self, batch: Tensor) -> float:
        check_batch(batch, self.recipe, self.steps)
        parts = self.microbatches(batch)
        scale = self.scaler.scale / (len(parts) * self.data_width)
        self.model.auxiliary.value = scale
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        self.gradients.begin()
        for number, part in enumerate(parts):
            if number == len(parts) - 1:
                self.gradients.last()
            loss = self.loss(part)
            total += loss.detach()
            (loss * scale).backward()  # type: ignore[no-untyped-call]
        self.take_gradients()
        mean = self.mean_over_data(total / len(parts))
        if not self.scaler.dynamic:
            stop_at_loss(mean, self.steps, self.model, self.ranks.group, lambda: self.forward_only(parts))
        return mean

    def take_gradients(self) -> None:
        """Wait for the sums over ranks and give them to the masters (collective)."""
        reduced = self.gradients.finish()
        with region("optimizer"):
            for name, gradient in reduced.items():
                self.masters.masters[name].grad = gradient.to(torch.float32)

    def update(self) -> float:
        with region("optimizer"):
            gradients = self.masters.gradients()
            scaled_norm = self._norm(gradients)
            if not self.scaler.dynamic:
                stop_at_norm(scaled_norm, self.steps, gradients, self.ranks.group)
            norm = apply_gradients(
                self.model,
                self.masters,
                gradients,
                scaled_norm,
                self.scaler,
                self.recipe.clip_norm,
                (self.data_group,),
            )
        if self.migration is not None:
            with region("migration"):
                if self.migration.maybe_migrate(self.steps):
                    self.experts_moved()
        self.steps += 1
        return norm

    def experts_moved(self) -> None:
        """After modules' ``place``: what else depends on the number of experts here is made anew if that changed."""
        if not self.gradients.fit():
            self.gradients.close()
            self.gradients = self._buckets()

    def full_parameters(self) -> dict[str, Tensor]:
        return self.whole({name: weight.detach() for name, weight in self.masters.masters.items()})

    def full_gradients(self) -> dict[str, Tensor]:
        whole = self.whole(self.masters.gradients())
        return {name: gradient / self.scaler.scale for name, gradient in whole.items()}

    def state_dict(self) -> dict[str, Any]:
        weights = {}
        for name in self.masters.masters:
            for part, tensor in self.masters.state(name).items():
                for key, value in self._state_keys(name, tensor).items():
                    weights[f"{key}.{part}"] = value
        return {
            "weights": weights,
            "buffers": self.buffers(),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights = state["weights"]
        for name in self.masters.masters:
            parts = {}
            for part, tensor in self.masters.state(name).items():
                values = [weights[f"{key}.{part}"] for key in self._state_keys(name, tensor)]
                parts[part] = torch.stack(values) if self.is_expert(name) and tensor.dim() else values[0]
            self.masters.set_state(name, parts)
        self.load_buffers(state["buffers"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = int(state["steps"])

    def close(self) -> None:
        self.gradients.close()
        self.mesh.close()

    @property
    def data_group(self) -> dist.ProcessGroup:
        return self.mesh.group(*self.data_axes)

    @property
    def _copy_axes(self) -> tuple[str, ...]:
        """Of ranks that hold the same experts and see other tokens."""
        return tuple(axis for axis in self.data_axes if axis not in self.expert_axes)

    def _fill(self, model: Transformer) -> None:
        """Memory and first weights for the model on the meta device."""
        model.to_empty(device=self.ranks.device)
        tie_embeddings(model, self.recipe)
        self.initialise(model)

    def _buckets(self) -> GradientBuckets:
        travels = DTYPES[self.recipe.gradient_precision]
        return GradientBuckets(
            self.masters.working,
            self.gradient_group,
            travels,
            # As the plain system adds up microbatches. One alone needs no more digits than it travels with.
            sum_dtype=torch.float32 if self.recipe.microbatches > 1 else travels,
        )

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Over all ranks, each parameter once."""
        alike: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
        for name, gradient in gradients.items():
            alike.setdefault(self.norm_groups(name), []).append(gradient)
        return gradient_norm([Spread(parts, groups) for groups, parts in alike.items()])

    def _state_keys(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """``logical``, also of what has no dimensions and is the same for all experts of a stack."""
        if self.is_expert(name) and not tensor.dim():
            return {f"{name}.{expert}": tensor.clone() for expert in self.experts_of(name)}
        return self.logical(name, tensor)


def chosen_ep(recipe: Recipe, world: int, options: Mapping[str, Any]) -> int:
    """The ranks that share experts, by the options ``ep`` (0: as many as divide both) and ``placement``.

    Raises:
        ValueError: they do not divide the ranks, or the experts of a layer where ``placement`` is even.
    """
    layers = [layer.experts.experts for layer in recipe.architecture.layers if layer.experts is not None]
    uneven, ep = options.get("placement") == "uneven", int(options.get("ep", 0))
    fewest = min(layers, default=1)
    if ep == 0:
        divisors = [size for size in range(1, world + 1) if world % size == 0 and size <= fewest]
        return max(size for size in divisors if uneven or all(experts % size == 0 for experts in layers))
    if ep < 0 or world % ep:
        raise ValueError(f"ep={ep} does not divide {world} ranks; choose a divisor of {world}")
    for experts in layers:
        if experts < ep:
            raise ValueError(f"ep={ep} is more than the {experts} experts of a layer; choose at most {experts}")
        if experts % ep and not uneven:
            raise ValueError(
                f"ep={ep} does not divide the {experts} experts of a layer; choose a divisor of {experts},"
                " or placement=uneven"
            )
    return ep
