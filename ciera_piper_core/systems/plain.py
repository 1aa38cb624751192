"""The plain system: the whole batch on one rank. It is what all others are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.ranges import region
from ciera_piper_core.systems.system import Layout, TrainingSystem
from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.gradient_norm import Spread, gradient_norm
from ciera_piper_core.training.health import check_batch, require_finite, require_finite_norm
from ciera_piper_core.training.loss_scaling import LossScaler
from ciera_piper_core.training.optimizer import MasterWeights
from ciera_piper_core.training.update import apply_gradients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe


class Plain(TrainingSystem):
    """No parallelism. On several ranks each does all of the work, and nothing is sent.

    Attributes:
        model: with working weights.
        weights: masters and optimizer.
        scaler: of the loss.
        step: steps that were begun, from 0.
    """

    name: ClassVar[str] = "plain"
    summary: ClassVar[str] = "one process, the whole batch: the reference"
    loss_tolerance: ClassVar[float] = 0.0
    exact_as: ClassVar[str] = "plain"

    model: Transformer

    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        if (why := self.refusal(recipe, ranks, options)) is not None:
            raise ValueError(why)
        self.recipe, self.ranks, self.layout = recipe, ranks, Layout()
        self.model = build_model(recipe, device=ranks.device)
        self.weights = MasterWeights(self.model, recipe)
        self.scaler = LossScaler(recipe.precision)
        self.step = 0

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        """See ``TrainingSystem.refusal``."""
        try:
            recipe.sequences_per_microbatch(1)
        except ValueError as error:
            return str(error)
        return None

    def accumulate(self, batch: Tensor) -> float:
        """See ``TrainingSystem.accumulate``."""
        check_batch(batch, self.recipe, self.step)
        microbatches = self.recipe.microbatches
        factor = self.scaler.scale / microbatches
        self.model.auxiliary.value = factor
        losses = []
        for part in batch.chunk(microbatches):
            loss = self._loss(part)
            with region("loss"):
                losses.append(loss.detach())
                scaled = loss * factor
            scaled.backward()  # type: ignore[no-untyped-call]
            with region("loss"):
                # With them goes the graph.
                del loss, scaled
            with region("optimizer"):
                self.weights.collect_gradients()
        with region("loss"):
            mean = float(torch.stack(losses).double().mean())
            require_finite(mean, self.step, self.model, lambda: self.model(batch[:, :-1].to(self.ranks.device)))
        return mean

    def update(self) -> float:
        """See ``TrainingSystem.update``."""
        with region("optimizer"):
            gradients = self.weights.gradients()
            scaled_norm = gradient_norm([Spread(list(gradients.values()))])
            if not self.scaler.dynamic:
                require_finite_norm(scaled_norm, self.step, gradients)
            norm = apply_gradients(self.model, self.weights, gradients, scaled_norm, self.scaler, self.recipe.clip_norm)
        self.step += 1
        return norm

    def evaluate(self, batch: Tensor) -> float:
        """See ``TrainingSystem.evaluate``."""
        with torch.no_grad():
            losses = [self._loss(part) for part in batch.chunk(self.recipe.microbatches)]
        return float(torch.stack(losses).double().mean())

    def full_parameters(self) -> dict[str, Tensor]:
        """See ``TrainingSystem.full_parameters``."""
        return {name: master.detach().cpu().clone() for name, master in self._on_rank_0(self.weights.masters).items()}

    def full_gradients(self) -> dict[str, Tensor]:
        """See ``TrainingSystem.full_gradients``."""
        gradients = self._on_rank_0(self.weights.gradients())
        return {name: gradient.cpu() / self.scaler.scale for name, gradient in gradients.items()}

    def state_dict(self) -> dict[str, Any]:
        """See ``TrainingSystem.state_dict``."""
        return {
            "weights": self.weights.state_dict(),
            "buffers": dict(self.model.named_buffers()),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``TrainingSystem.load_state_dict``."""
        self.weights.load_state_dict(state["weights"])
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(state["buffers"][name])
        self.scaler.load_state_dict(state["scaler"])
        self.step = int(state["step"])

    def _loss(self, part: Tensor) -> Tensor:
        with region("embedding"):
            part = part.to(self.ranks.device)
            tokens = part[:, :-1]
        logits = self.model(tokens)
        with region("loss"):
            return token_loss(logits, part[:, 1:])

    def _on_rank_0(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors) if self.ranks.world == 1 or torch.distributed.get_rank(self.ranks.group) == 0 else {}
