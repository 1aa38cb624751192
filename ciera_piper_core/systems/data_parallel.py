"""What systems have in common that split a batch over ranks: their share of it, its loss, and means over all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.ranges import region
from ciera_piper_core.systems.system import TrainingSystem
from ciera_piper_core.training.batches import share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ciera_piper_core.models.transformer import Transformer


class DataParallelSystem(TrainingSystem):
    """See the module.

    Attributes:
        model: the plain model as it has been spread.
        data_rank, data_width: this rank's place among those that a batch is split over, and their number.
    """

    model: Transformer
    data_rank: int
    data_width: int

    @property
    def data_group(self) -> dist.ProcessGroup:
        """The ranks that a batch is split over."""
        return self.ranks.group

    def microbatches(self, batch: Tensor) -> list[Tensor]:
        """This rank's share of a batch, cut into ``(sequences, sequence + 1)`` each."""
        mine = share(batch, self.data_rank, self.data_width).to(self.ranks.device)
        return list(torch.split(mine, self.recipe.sequences_per_microbatch(self.data_width)))

    def logits(self, tokens: Tensor) -> Tensor:
        """Of the next tokens; differentiable."""
        logits: Tensor = self.model(tokens)
        return logits

    def loss(self, part: Tensor) -> Tensor:
        """Mean cross-entropy of one microbatch ``(sequences, sequence + 1)`` of this rank; differentiable."""
        logits = self.logits(part[:, :-1])
        with region("loss"):
            return token_loss(logits, part[:, 1:])

    def forward_only(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum of the microbatches' losses, float64."""
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        with torch.no_grad():
            for part in parts:
                total += self.loss(part)
        return total

    def mean_over_data(self, mine: Tensor) -> float:
        """The mean of what each of the data ranks has (collective); ``mine`` is changed."""
        with region("loss"):
            dist.all_reduce(mine, group=self.data_group)
            return mine.item() / self.data_width

    def evaluate(self, batch: Tensor) -> float:
        parts = self.microbatches(batch)
        return self.mean_over_data(self.forward_only(parts) / len(parts))

    def buffers(self) -> dict[str, Tensor]:
        """The model's buffers that outlive a step (routers' biases), by name; the same on all ranks."""
        state = self.model.state_dict()
        return {name: state[name] for name, _ in self.model.named_buffers() if name in state}

    def load_buffers(self, state: Mapping[str, Any]) -> None:
        """Take over what ``buffers`` gave."""
        with torch.no_grad():
            for name, buffer in self.buffers().items():
                buffer.copy_(state[name])
