"""Runs the microbatches of a step through the stages of a pipeline, in the order of any of torch's schedules."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.pipeline.schedules import SINGLE_STAGE, TORCH_CLASS, rank_stages, splits_backward, why_not
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from ciera_piper_core.pipeline.stages import Stages


@dataclass(frozen=True)
class Microbatch:
    """What passes between stages, the same for all microbatches and stages.

    Attributes:
        sequences, sequence: of a microbatch, and tokens of each. hidden, vocab: widths of what stages hand on, and of
            the logits. dtype: of both.
    """

    sequences: int
    sequence: int
    hidden: int
    vocab: int
    dtype: torch.dtype


class Executor:
    """The stages of this rank, and the order in which they are run.

    All ranks of ``group`` make their calls together; so do ranks that share experts, which run the
    same microbatches in the same order because their schedule is the same.

    Gradients are left in ``grad`` of the stages' parameters: of the sum of the microbatches' losses, each times
    ``loss_weight``. Hooks that take them as they come (``register_post_accumulate_grad_hook``) are run in all
    schedules.

    Attributes:
        loss_weight: of each microbatch's mean loss; set it to ``1 / (microbatches * data width)``, times a loss scale.
        schedule: as in ``pipeline.schedules``.
    """

    def __init__(
        self,
        modules: Mapping[int, torch.nn.Module],
        stages: Stages,
        schedule: str,
        microbatches: int,
        shape: Microbatch,
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = token_loss,
        whole_backward: bool = False,
    ) -> None:
        """
        Args:
            modules: this rank's stages, by number.
            schedule: a name of ``pipeline.schedules.SCHEDULES``.
            microbatches: of a step.
            group: the pipeline, in order of its stages' ranks.
            loss: the mean loss of a microbatch, from logits and targets.
            whole_backward: leave no weight gradients for later in schedules that split backward passes. Needed
                where activations are computed again: each part of a split pass would do so for itself.

        Raises:
            ValueError: the schedule cannot run so, or the ranks have other stages than it needs.
        """
        rank, pp = dist.get_rank(group), dist.get_world_size(group)
        if reason := why_not(schedule, pp, microbatches, stages.layer_count):
            raise ValueError(reason)
        if stages.of_rank != rank_stages(schedule, pp):
            raise ValueError(
                f"{schedule} on {pp} ranks needs stages {rank_stages(schedule, pp)} on them, not {stages.of_rank}"
            )
        if tuple(sorted(modules)) != stages.of_rank[rank]:
            raise ValueError(f"pipeline rank {rank} has stages {stages.of_rank[rank]}, not {tuple(sorted(modules))}")
        self.schedule, self.loss_weight = schedule, 1.0
        self._modules, self._stages, self._group, self._device = dict(modules), stages, group, device
        self._microbatches, self._shape, self._loss = microbatches, shape, loss
        self._rank = rank
        self._seen: list[Tensor] = []
        split = splits_backward(schedule) and not whole_backward
        parts = [self._torch_stage(stage, module, split=split) for stage, module in sorted(modules.items())]
        kind: Any = torch_schedules.get_schedule_class(TORCH_CLASS[schedule])
        self._schedule = kind(
            parts[0] if schedule in SINGLE_STAGE else parts,
            microbatches,
            loss_fn=self._weighted_loss,
            scale_grads=False,
        )

    @property
    def has_first(self) -> bool:
        """Whether this rank takes the tokens in."""
        return self._stages.has_first(self._rank)

    @property
    def has_last(self) -> bool:
        """Whether this rank computes the loss."""
        return self._stages.has_last(self._rank)

    def step(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Forward and backward passes of all microbatches (collective).

        Args:
            tokens, targets: ``(microbatches * sequences, sequence)``, int64, this data rank's share; read on the
                ranks with the first and with the last stage.

        Returns:
            on the rank with the last stage each microbatch's loss, unweighted and detached; elsewhere nothing.
        """
        self._check(tokens, targets)
        self._seen = []
        inputs = (tokens.to(self._device),) if self.has_first else ()
        target = targets.to(self._device) if self.has_last else None
        # What torch's schedule does between passes is marked as waiting: it is the pipeline's, not the model's.
        with region("pipeline_wait"), _marked_waits():
            self._schedule.step(*inputs, target=target, return_outputs=False)
        losses, self._seen = self._seen, []
        return losses

    @torch.no_grad()
    def evaluate(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Losses as of ``step``, without a backward pass (collective).

        Stage by stage, each with all microbatches: torch's schedules cannot all run without backward passes.
        """
        self._check(tokens, targets)
        losses: list[Tensor] = []
        handed: list[Tensor] = []
        sent: list[tuple[dist.Work, Tensor]] = []
        inputs, goals = (each.to(self._device).chunk(self._microbatches) for each in (tokens, targets))
        for stage in self._stages.of_rank[self._rank]:
            taken, handed = handed, []
            for number in range(self._microbatches):
                if stage == 0:
                    x = inputs[number]
                elif self._rank_of(stage - 1) == self._rank:
                    x = taken[number]
                else:
                    x = self._received(self._rank_of(stage - 1))
                x = self._modules[stage](x)
                if stage == self._stages.count - 1:
                    with region("loss"):
                        losses.append(self._loss(x, goals[number]))
                elif self._rank_of(stage + 1) == self._rank:
                    handed.append(x)
                else:
                    x = x.contiguous()
                    work = dist.isend(x, group=self._group, group_dst=self._rank_of(stage + 1))
                    assert work is not None
                    sent.append((work, x))
        with region("pipeline_wait"):
            for work, _ in sent:
                work.wait()
        return losses

    def _rank_of(self, stage: int) -> int:
        return self._stages.rank_of(stage)

    def _received(self, source: int) -> Tensor:
        x = torch.empty(self._activation_shape, dtype=self._shape.dtype, device=self._device)
        with region("pipeline_wait"):
            dist.recv(x, group=self._group, group_src=source)
        return x

    @property
    def _activation_shape(self) -> tuple[int, int, int]:
        return self._shape.sequences, self._shape.sequence, self._shape.hidden

    def _torch_stage(self, number: int, module: torch.nn.Module, *, split: bool) -> PipelineStage:
        # Shapes are stated, or torch would find them out by a pass of its own: with collectives, and counted tokens.
        handed_on = torch.empty(self._activation_shape, dtype=self._shape.dtype, device="meta", requires_grad=True)
        tokens = torch.empty(self._shape.sequences, self._shape.sequence, dtype=torch.int64, device="meta")
        logits = torch.empty(
            (*tokens.shape, self._shape.vocab), dtype=self._shape.dtype, device="meta", requires_grad=True
        )
        return _Stage(
            module,
            number,
            self._stages.count,
            self._device,
            input_args=tokens if number == 0 else handed_on,
            output_args=logits if number == self._stages.count - 1 else handed_on,
            group=self._group,
            # What torch calls in place of the second part of a backward pass; the first is then a whole one.
            dw_builder=None if split or not splits_backward(self.schedule) else _nothing_left,
        )

    def _weighted_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        with region("loss"):
            loss = self._loss(logits, targets)
            self._seen.append(loss.detach())
            return loss * self.loss_weight

    def _check(self, *tensors: Tensor) -> None:
        shape = (self._microbatches * self._shape.sequences, self._shape.sequence)
        for tensor in tensors:
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"the pipeline takes {self._microbatches} microbatches of {self._shape.sequences} sequences, a"
                    f" tensor of shape {shape}, not {tuple(tensor.shape)}"
                )


class _Stage(PipelineStage):
    """A stage whose parameters' hooks learn of gradients in split backward passes too.

    The second part of such a pass writes them into ``grad`` itself, which no hook sees.
    """

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        for weight in self.submod.parameters():
            hooks: Any = getattr(weight, "_post_accumulate_grad_hooks", None)
            # One that has no gradient any more was taken by its hooks already.
            for hook in list(hooks.values()) if hooks else ():
                if weight.grad is not None:
                    hook(weight)


def _nothing_left() -> Callable[[], None]:
    return lambda: None


@contextmanager
def _marked_waits() -> Iterator[None]:
    """Mark where torch's schedules wait for another stage: they all do so in one function."""
    waits = torch_schedules._wait_batch_p2p

    def marked(work: list[dist.Work]) -> None:
        if work:
            with region("pipeline_wait"):
                waits(work)

    torch_schedules._wait_batch_p2p = marked
    try:
        yield
    finally:
        torch_schedules._wait_batch_p2p = waits
