"""Compression that finds out, while a model trains, where it gains: by its gathers first, then by whole steps.

A gather that is faster by itself may still make the step slower: coding takes processor time that the step's own
computing needs, above all where ranks share cores. So what the gathers' measurements selected is held against
plain gathers in steps of the training itself, and goes if those were faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.allgather.fsdp import CompressedModel
    from ciera_piper_core.allgather.gain import Selection


@dataclass(frozen=True)
class Trial:
    """Steps of both kinds, timed.

    Attributes:
        compressed_s, plain_s: the fastest step of each kind, of the slowest rank; seconds.
    """

    compressed_s: float
    plain_s: float

    @property
    def gains(self) -> bool:
        """Whether compression stays."""
        return self.compressed_s < self.plain_s


class AdaptiveCompression:
    """Call :meth:`before_step` and :meth:`after_step` around every step, on all ranks.

    Steps in their order: ``settle`` until changes are those of training; ``record``, whose changes are
    recorded; then gathers are measured and parameters selected
    (:meth:`~ciera_piper_core.allgather.fsdp.CompressedModel.keep_worthwhile`); ``trial`` plain steps; one in which the
    selected parameters are sent whole; ``trial`` compressed ones; and what was faster stays. All of it
    changes when and how parameters travel, never their bits.

    Attributes:
        selections: what was selected and why; empty before.
        outcome: of the trial; None before, and without one.
    """

    selections: tuple[Selection, ...] = ()
    outcome: Trial | None = None

    def __init__(
        self, models: Sequence[CompressedModel], settle: int, record: int, trial: int, group: dist.ProcessGroup
    ) -> None:
        """
        Args:
            models: this rank's; all of them are switched together.
            settle, record, trial: steps, as above; no trial if 0. The first step sends everything, so it cannot be
                one whose changes are recorded.
            group: all ranks that train together.

        Raises:
            ValueError: a number of steps below 0, or nothing is recorded.
        """
        if settle < 1 or record < 1 or trial < 0:
            raise ValueError(
                f"settle and record must be 1 step or more and trial 0 or more, not {settle}, {record} and {trial}"
            )
        self._models, self._group = models, group
        self._record_from, self._select_at = settle, settle + record
        # The step of the selection itself is no trial: what it measures lengthens it, and caches are cold after it.
        self._plain_from = self._select_at + 1
        self._compressed_from = self._plain_from + trial + 1
        self._decide_at = self._compressed_from + trial
        self._trial = trial
        self._steps, self._prepared = 0, -1
        self._begun = 0.0
        self._chosen: list[dict[str, list[str]]] = []
        # By kind, of each step whether its update was left out, and its seconds: the least is the one that counts.
        self._steps_of: dict[bool, list[tuple[bool, float]]] = {True: [], False: []}

    @property
    def settled_after(self) -> int:
        """Steps after which the way of gathering does not change any more: measure from there."""
        return (self._decide_at if self._trial else self._select_at) + 1

    def before_step(self) -> None:
        """Do what is due before the next step (collective; with no gather in flight).

        A step that failed may begin again: what was due has been done.
        """
        if self._prepared < self._steps:
            self._prepare()
            # Only now: what failed is due again.
            self._prepared = self._steps
        self._begun = time.perf_counter()

    def after_step(self, applied: bool = True) -> None:
        """Take the step's time.

        Args:
            applied: false if the update was left out, for gradients that float16 cannot hold: such a step is short,
                and counts only where its kind has no other. The same on all ranks.
        """
        timed = self._trial and self._plain_from <= self._steps < self._decide_at
        # The first step after plain ones sends everything.
        if timed and self._steps != self._compressed_from - 1:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
            took = time.perf_counter() - self._begun
            self._steps_of[self._steps >= self._compressed_from].append((not applied, took))
        self._steps += 1

    def _prepare(self) -> None:
        if self._steps == self._record_from:
            for model in self._models:
                model.record()
        elif self._steps == self._select_at:
            with region("codec"):
                self.selections = tuple(
                    one for model in self._models if _compresses(model) for one in model.keep_worthwhile()
                )
                self._chosen = [
                    {name: [one.name for one in plan.selected] for name, plan in model.plans.items()}
                    for model in self._models
                ]
        elif self._trial and self._steps in (self._plain_from, self._decide_at):
            with region("codec"):
                if self._steps == self._decide_at:
                    self.outcome = self._decided()
                if self.outcome is None or not self.outcome.gains:
                    self._gather(compressed=False)
        elif self._trial and self._steps == self._compressed_from - 1:
            with region("codec"):
                self._gather(compressed=True)

    def _gather(self, compressed: bool) -> None:
        """By the selections, or all plain."""
        for model, chosen in zip(self._models, self._chosen, strict=True):
            model.apply(plan.with_selection(chosen[name] if compressed else ()) for name, plan in model.plans.items())

    def _decided(self) -> Trial:
        """The same on all ranks."""
        mine = min(self._steps_of[True])[1], min(self._steps_of[False])[1]
        everyone = [mine] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        return Trial(*(max(each) for each in zip(*everyone, strict=True)))


def _compresses(model: CompressedModel) -> bool:
    """Whether there is anything to decide: no shard may be as long as a block."""
    return any(plan.selected for plan in model.plans.values())
