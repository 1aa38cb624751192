"""TED: tensor, expert and data parallelism, where duplicates of tokens are dropped before the dispatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.models.initialisation import draw
from ciera_piper_core.models.tensor_collectives import TensorRanks, all_rows
from ciera_piper_core.models.tensor_parallel import cut_model, cut_refusal
from ciera_piper_core.models.vocabulary_parallel import cut_token_loss
from ciera_piper_core.moe.tensor_experts import TensorExpertParallel
from ciera_piper_core.ranges import region
from ciera_piper_core.systems.replicated import ReplicatedSystem, chosen_ep
from ciera_piper_core.systems.system import Option
from ciera_piper_core.training.gradient_norm import Spread, gradient_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist
    from torch import Tensor

    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.models.tensor_cuts import Cut
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.moe.expert_parallel import ExpertParallel
    from ciera_piper_core.training.recipe import Recipe


class TedSystem(ReplicatedSystem):
    """Tensor, expert and data parallelism together, after DeepSpeed-TED (arXiv 2303.06318).

    Ranks of a tensor-parallel group, which are neighbours, share every matrix, those of the experts too,
    and have the same tokens. Before a dispatch each keeps another part of them, and after it they gather
    what arrived. Other than there, rows are exchanged as they are, without capacity buffers.

    Attributes:
        tensor: the ranks that share matrices. cuts: by parameter's name, how it is cut; all others are copied.
    """

    name: ClassVar[str] = "ted"
    summary: ClassVar[str] = "tensor + expert + data parallel, duplicate tokens dropped before dispatch (after TED)"
    options: ClassVar[Mapping[str, Option]] = {
        **ReplicatedSystem.options,
        "tp": Option(0, "ranks that share every matrix; 0: 2 where that fits, else 1", minimum=0),
        "drop": Option(True, "drop duplicates of tokens before the dispatch; false: each of the tp ranks sends all"),
    }

    tensor: TensorRanks
    cuts: dict[str, Cut]

    @classmethod
    def arrange(cls, recipe: Recipe, world: int, options: Mapping[str, Any]) -> dict[str, int]:
        """``dp``, ``ep`` and ``tp``, whose ranks are neighbours.

        Raises:
            ValueError: they do not fit, or the model cannot be cut.
        """
        tp = int(options["tp"])
        if tp == 0:
            tp = 1 if world % 2 or _refusal(recipe, 2) else 2
        if tp < 1 or world % tp:
            raise ValueError(f"tp={tp} does not divide {world} ranks; choose a divisor of {world}")
        if reason := _refusal(recipe, tp):
            raise ValueError(reason)
        ep = chosen_ep(recipe, world // tp, options)
        return {"dp": world // tp // ep, "ep": ep, "tp": tp}

    def parallelise(self, model: Transformer) -> None:
        """Spread and cut the experts, then cut all else."""
        group, ep = self.mesh.group("tp"), self.mesh.group("ep")
        self.tensor = TensorRanks.of(group)
        self.dispatcher = FlatDispatch(ep, self.mesh.placement("ep"), make_all_to_all("flat", ep))
        super().parallelise(model)
        self.cuts = cut_model(model, group)
        for name, module in self.experts.items():
            assert isinstance(module, TensorExpertParallel)
            self.cuts |= {f"{name}.experts.{matrix}": cut for matrix, cut in module.cuts.items()}
        self._head = "output.weight" if "output.weight" in self.cuts else "embedding.weight"

    def spread(self, name: str, plain: RoutedExperts) -> ExpertParallel:
        return TensorExpertParallel(
            plain,
            self.mesh.group("ep"),
            self.dispatcher,
            self.table(plain.router.experts),
            tensor=self.mesh.group("tp"),
            drops_duplicates=bool(self.given["drop"]),
        )

    def initialise(self, model: Transformer) -> None:
        """Of what is cut, this rank's part of what every system draws."""
        super().initialise(model)
        seed, rank = self.recipe.seed, self.tensor.rank
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in self.cuts:
                    continue
                cut = self.cuts[name]
                if not self.is_expert(name):
                    weight.copy_(cut.part(draw(seed, name, _whole_shape(weight, cut)), rank))
                    continue
                for row, expert in zip(weight, self.experts_of(name), strict=True):
                    row.copy_(cut.part(draw(seed, name, _whole_shape(row, cut), expert=expert), rank))

    def loss(self, part: Tensor) -> Tensor:
        logits = self.model(part[:, :-1])
        with region("loss"):
            return cut_token_loss(logits, part[:, 1:], self.tensor, self.cuts[self._head])

    def norm_groups(self, name: str) -> tuple[dist.ProcessGroup, ...]:
        groups = super().norm_groups(name)
        return (*groups, self.tensor.group) if name in self.cuts else groups

    def logical(self, name: str, local: Tensor) -> dict[str, Tensor]:
        """Whole parameters (collective over the tensor-parallel ranks), so that a checkpoint fits any cut."""
        return super().logical(name, self._gathered(name, local))

    def whole(self, local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # Of experts, ``logical`` gathers the parts.
        gathered = {
            name: tensor if self.is_expert(name) else self._gathered(name, tensor) for name, tensor in local.items()
        }
        return super().whole(gathered)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights = {key: self._own_part(key, value) for key, value in state["weights"].items()}
        super().load_state_dict({**state, "weights": weights})

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        """As in the base; key/value heads that several ranks hold count once."""
        alike: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
        for name, gradient in gradients.items():
            cut = self.cuts.get(name)
            views = cut.counted(gradient, self.tensor.rank) if cut is not None and cut.copied else [gradient]
            alike.setdefault(self.norm_groups(name), []).extend(views)
        return gradient_norm([Spread(parts, groups) for groups, parts in alike.items()])

    def _gathered(self, name: str, local: Tensor) -> Tensor:
        """The whole of a parameter, gradient or state (collective over the tensor-parallel ranks)."""
        cut = self.cuts.get(name)
        if cut is None or not local.dim():
            return local
        ranks = self.tensor
        # In front, the dimension that is cut is one of rows, which can be gathered.
        rows = local.detach().movedim(cut.dim, 0).contiguous()
        counts = tuple(sum(len(one) for one in held) for held in cut.ranges)
        parts = torch.split(all_rows(rows, ranks, counts), list(counts))
        return cut.whole([part.movedim(0, cut.dim) for part in parts])

    def _own_part(self, key: str, value: Tensor) -> Tensor:
        """Of a whole from a checkpoint, this rank's part."""
        name = key.rpartition(".")[0]
        if name not in self.cuts:
            # Perhaps one expert of a stack: its number is the last of its key.
            name = name.rpartition(".")[0]
        cut = self.cuts.get(name)
        return value if cut is None or not value.dim() else cut.part(value, self.tensor.rank)


def _whole_shape(local: Tensor, cut: Cut) -> tuple[int, ...]:
    shape = list(local.shape)
    shape[cut.dim] = cut.size
    return tuple(shape)


def _refusal(recipe: Recipe, tp: int) -> str | None:
    if tp > 1 and recipe.optimizer == "adafactor":
        return f"adafactor keeps means over rows and columns of whole matrices, which tp={tp} cuts; use adam, or tp=1"
    return cut_refusal(recipe.architecture, tp)
