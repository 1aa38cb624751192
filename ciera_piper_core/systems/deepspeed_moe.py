"""The real DeepSpeed-MoE: its expert-parallel layer with capacity buffers, in its engine, data parallel beside."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
import torch.distributed as dist

from ciera_piper_core.models.initialisation import draw
from ciera_piper_core.moe.deepspeed_layer import DeepSpeedExperts, plain_name
from ciera_piper_core.systems.deepspeed_engine import MASTER, MOMENTS, DeepSpeedSystem, adam_state, adamw
from ciera_piper_core.systems.rank_mesh import RankMesh
from ciera_piper_core.systems.system import Layout, Option
from ciera_piper_core.training.build import empty_model, tie_embeddings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from ciera_piper_core.models.transformer import Transformer, TransformerLayer
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class DeepSpeedMoESystem(DeepSpeedSystem):
    """DeepSpeed's engine at stage 1 or 2 over the plain model with ``deepspeed.moe.layer.MoE`` for its experts.

    Neighbouring ranks share the experts. Stage 0 is not offered: without a ZeRO optimizer DeepSpeed clips by
    the mean of norms that each have one rank's experts in them, and not all, so it clips too little.

    Attributes:
        mesh: axes ``dp``, ``ep``.
    """

    name: ClassVar[str] = "deepspeed-moe"
    summary: ClassVar[str] = "DeepSpeed-MoE: expert and data parallel, capacity buffers, equal all-to-all"
    options: ClassVar[Mapping[str, Option]] = {
        "ep": Option(0, "ranks that share the experts; 0 for as many as divide the ranks and the experts", minimum=0),
        "zero": Option(1, "ZeRO stage: 1 shards the optimizer, 2 the gradients too", (1, 2)),
        "capacity_factor": Option(
            0.0, "an expert takes this many times its mean share of a microbatch; 0: all", minimum=0
        ),
        "min_capacity": Option(4, "but at least so many tokens", minimum=0),
        "balance": Option("sequence", "auxiliary loss: that of all systems, or DeepSpeed's", ("sequence", "deepspeed")),
    }

    mesh: RankMesh

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        if reason := super().refusal(recipe, ranks, options):
            return reason
        counts = _expert_counts(recipe)
        if not counts:
            return f"{recipe.architecture.name} has no routed experts; DeepSpeed-MoE is about nothing else"
        ep = options["ep"] or _widest(ranks.world, counts)
        if ranks.world % ep:
            return f"ep={ep} does not divide {ranks.world} ranks"
        if unfit := [count for count in counts if count % ep]:
            return f"DeepSpeed places as many experts on each rank, and ep={ep} does not divide {unfit[0]} experts"
        if recipe.routing.kind != "top_k":
            return f"DeepSpeed's gate has no routing of kind {recipe.routing.kind}; use top_k, and capacity_factor here"
        if recipe.routing.skew:
            return "DeepSpeed's gate takes no skew of its scores; use skew 0"
        return None

    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        if refused := self.refusal(recipe, ranks, options):
            raise ValueError(f"{self.name}: {refused}")
        self.recipe, self.ranks, self.given = recipe, ranks, dict(options)
        self.data_rank, self.data_width = dist.get_rank(ranks.group), ranks.world
        ep = options["ep"] or _widest(ranks.world, _expert_counts(recipe))
        self.layout = Layout(
            ep=ep,
            dp=ranks.world // ep,
            data_width=ranks.world,
            sharded="optimizer" if options["zero"] == 1 else "gradients, optimizer",
        )
        self.mesh = RankMesh(ranks, {"dp": ranks.world // ep, "ep": ep})
        deepspeed = self.connect()
        self._register_groups()
        self.model = self._spread_model()
        self._names = {name: self._plain(name) for name, _ in self.model.named_parameters()}
        with torch.no_grad():
            for weight, first in self._first_weights():
                weight.copy_(first)
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

        groups = split({"params": list(self.model.parameters()), "name": "dense"})
        self.start(deepspeed, adamw(recipe, groups))
        # Its masters are copies of weights that it rounded first; those of all systems are not.
        if recipe.precision != "fp32":
            with torch.no_grad():
                for weight, first in self._first_weights():
                    weight.set_full_hp_param(first.to(weight.device))

    def zero_settings(self) -> dict[str, Any]:
        return {"stage": self.given["zero"]}

    def full_parameters(self) -> dict[str, Tensor]:
        return self._on_rank_0(lambda weight: weight.get_full_hp_param(), 1.0)

    def full_gradients(self) -> dict[str, Tensor]:
        return self._on_rank_0(lambda weight: weight.get_full_hp_grad(), 1 / self.loss_scale)

    def state_dict(self) -> dict[str, Any]:
        self._link_moments()
        weights: dict[str, Tensor] = {}
        for name, weight in self._parameters():
            key = _key(*self._names[name])
            weights[f"{key}.{MASTER}"] = weight.get_full_hp_param()
            for part in MOMENTS:
                weights[f"{key}.{part}"] = weight.get_full_hp_param(part)
        return {
            "weights": weights,
            "adam_steps": float(next(self._adams())["step"]),
            "buffers": self.buffers(),
            "scaler": self.scaler_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._link_moments()
        with torch.no_grad():
            for name, weight in self._parameters():
                key = _key(*self._names[name])
                weight.set_full_hp_param(state["weights"][f"{key}.{MASTER}"])
                for part in MOMENTS:
                    weight.set_full_hp_param(state["weights"][f"{key}.{part}"], part)
            for adam in self._adams():
                adam["step"].fill_(state["adam_steps"])
            self.engine.optimizer.update_lp_params()
        self.load_buffers(state["buffers"])
        self.load_scaler_state(state["scaler"])
        self.steps = int(state["steps"])

    def close(self) -> None:
        super().close()
        self.mesh.close()

    def _register_groups(self) -> None:
        """Our groups under DeepSpeed's names; its own would have the job's default backend."""
        from deepspeed.utils import groups

        name = f"ep_size_{self.layout.ep}"
        everyone = dist.get_process_group_ranks(self.ranks.group)
        for axis, table, ranks_of in (
            ("ep", groups._EXPERT_PARALLEL_GROUP, groups._EXPERT_PARALLEL_GROUP_RANKS),
            ("dp", groups._EXPERT_DATA_PARALLEL_GROUP, groups._EXPERT_DATA_PARALLEL_GROUP_RANKS),
        ):
            table[name] = self.mesh.group(axis)
            ranks_of[name] = [everyone[member] for member in self.mesh.members(axis)]

    def _spread_model(self) -> Transformer:
        """The plain model with DeepSpeed's layers, uninitialised; no rank ever holds the experts of another."""
        recipe, device = self.recipe, self.ranks.device
        model = empty_model(recipe, device="meta")
        layers = [cast("TransformerLayer", layer) for layer in model.layers.values()]
        routed = [layer for layer in layers if layer.routed_experts is not None]
        for layer in routed:
            layer.routed_experts = None
        model.to_empty(device=device)
        tie_embeddings(model, recipe)
        shapes = [layer.experts for layer in recipe.architecture.layers if layer.experts is not None]
        for layer, experts in zip(routed, shapes, strict=True):
            layer.routed_experts = DeepSpeedExperts(  # type: ignore[assignment]
                experts,
                recipe.architecture.hidden,
                ep=self.layout.ep,
                routing=recipe.routing,
                auxiliary=model.auxiliary,
                capacity_factor=self.given["capacity_factor"],
                min_capacity=self.given["min_capacity"],
                balance=self.given["balance"],
                device=device,
            )
        return model

    def _plain(self, name: str) -> tuple[str, int | None]:
        """A parameter's name in the plain model, and its expert's number there."""
        before = name.partition(".routed_experts.")[0].rpartition(".")[2]
        here = 0
        if before.isdigit() and (experts := self.recipe.architecture.layers[int(before)].experts):
            here = experts.experts // self.layout.ep
        return plain_name(name, self.mesh.coordinate("ep"), here)

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        """DeepSpeed's parameters, by their names in its model."""
        yield from self.model.named_parameters()

    def _first_weights(self) -> Iterator[tuple[Any, Tensor]]:
        for name, weight in self._parameters():
            plain, expert = self._names[name]
            yield weight, draw(self.recipe.seed, plain, tuple(weight.shape), expert)

    def _adams(self) -> Iterator[dict[str, Tensor]]:
        """AdamW's state of each flat group."""
        optimizer = self.engine.optimizer
        for flat in optimizer.single_partition_of_fp32_groups:
            yield adam_state(optimizer.optimizer, flat)

    def _link_moments(self) -> None:
        """Make moments that a first step would make, and let DeepSpeed find parameters in them."""
        for _ in self._adams():
            pass
        # It does so once, after the first group's first step: other groups had no moments to be found then.
        self.engine.optimizer._hp_optimizer_states_linked = False
        self.engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _on_rank_0(self, whole_of: Callable[[Any], Tensor], factor: float) -> dict[str, Tensor]:
        """All parameters, or what ``whole_of`` gives for them, by the plain names on rank 0 (collective)."""
        whole: dict[str, Tensor] = {}
        by_stack = groupby(
            sorted((*self._names[name], number) for number, (name, _) in enumerate(self._parameters())),
            key=lambda entry: entry[0],
        )
        weights = [weight for _, weight in self._parameters()]
        for plain, entries in by_stack:
            numbered = list(entries)
            values = [whole_of(weights[number]).detach() for _, _, number in numbered]
            value = values[0]
            if numbered[0][1] is not None:
                mine = torch.stack(values)
                parts = [torch.empty_like(mine) for _ in range(self.layout.ep)]
                dist.all_gather(parts, mine, group=self.mesh.group("ep"))
                value = torch.cat(parts)
            if self.mesh.rank == 0:
                whole[plain] = value.to("cpu", torch.float32, copy=True).mul_(factor)
        return whole


def _key(plain: str, expert: int | None) -> str:
    """In a checkpoint: one key an expert, so that another number of ranks can share them."""
    return plain if expert is None else f"{plain}.{expert}"


def _expert_counts(recipe: Recipe) -> list[int]:
    return [layer.experts.experts for layer in recipe.architecture.layers if layer.experts is not None]


def _widest(world: int, counts: list[int]) -> int:
    return max(ep for ep in range(1, world + 1) if world % ep == 0 and all(count % ep == 0 for count in counts))
