"""The workload of ``load_balance``: a training whose routers are watched.

It imports torch, so the suite imports it when it sets up a case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from bench.suite import Workload
from ciera_piper_core.alltoall.dispatch import DROPPED
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.moe.router import Router
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.system import Ranks
from ciera_piper_core.training.batches import Batches
from suites.load_balance import BY_PHASE, PHASES, recipe_of, steps_of
from suites.training_case import device_of, read_corpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context

VALIDATION_BATCHES = 4


@dataclass(frozen=True)
class Served:
    """What a router did in a pass over one batch.

    Attributes:
        counts: choices that each expert served, ``(experts,)``.
        most: choices of one sequence that the busiest expert served.
        tokens: of the batch. choices: that tokens made; 0 where experts choose.
        unserved: tokens without an expert.
    """

    counts: torch.Tensor
    most: int
    tokens: int
    choices: int
    unserved: int

    @property
    def load(self) -> float:
        """The busiest expert over the mean."""
        return float(self.counts.max() * len(self.counts) / self.counts.sum().clamp(min=1))

    @property
    def entropy(self) -> float:
        """Of the experts' shares, over the logarithm of their number."""
        shares = self.counts.double() / self.counts.sum().clamp(min=1)
        return float(torch.special.entr(shares).sum()) / math.log(len(shares))

    @property
    def dropped(self) -> float:
        """Choices that were not served, of those that were made."""
        return 1 - int(self.counts.sum()) / self.choices if self.choices else 0.0


class WatchedTraining(Workload):
    """Trains when it is made; ``run`` is one more step.

    Attributes:
        losses: of the training's steps.
        served: for each of them, what each layer's router did.
    """

    def __init__(self, case: Case, context: Context) -> None:
        self._case = case
        self._threads_before = torch.get_num_threads()
        device = device_of(context.site)
        if device.type == "cpu":
            torch.set_num_threads(context.site.cores)
        corpus = read_corpus(case["corpus"])
        self._recipe = recipe_of(case, context.site.seed, corpus.vocab)
        self._batches = Batches(corpus, self._recipe)
        # It sends nothing, so it needs no group.
        nobody: Any = None
        self._system = Plain(self._recipe, Ranks(nobody, even_placement(1, 1), device), {})
        self._routers = [part for part in self._system.model.modules() if isinstance(part, Router)]
        self.losses: list[float] = []
        self.served: list[list[Served]] = []
        self._train(int(case["steps"]), context)
        self.validation = fmean(self._system.evaluate(self._batches.validation(n)) for n in range(VALIDATION_BATCHES))
        self._batch = self._batches.batch(len(self.losses))

    def run(self) -> None:
        self._system.accumulate(self._batch)
        self._system.update()

    def check(self) -> int:
        """Passes of a layer whose counts the router's kind forbids, and losses that are not finite.

        Who takes the k best serves all choices; with a capacity no expert serves more of a sequence than that;
        an expert that chooses takes exactly so many of each.
        """
        wrong = sum(not math.isfinite(loss) for loss in (*self.losses, self.validation))
        for served in self.served:
            wrong += sum(not self._allowed(router, one) for router, one in zip(self._routers, served, strict=True))
        return wrong

    def observations(self) -> Mapping[str, Sequence[float]]:
        found: dict[str, Sequence[float]] = {"loss[phase=validation]": [self.validation]}
        for phase in PHASES:
            steps = steps_of(phase, len(self.losses))
            for name, _ in BY_PHASE:
                found[f"{name}[phase={phase}]"] = [self._value(name, step) for step in steps]
        return found

    def close(self) -> None:
        self._system.close()
        torch.set_num_threads(self._threads_before)

    def _train(self, steps: int, context: Context) -> None:
        passes: dict[int, Served] = {}
        hooks = [router.register_forward_hook(self._watch(layer, passes)) for layer, router in enumerate(self._routers)]
        for step in range(steps):
            self.losses.append(self._system.accumulate(self._batches.batch(step)))
            self._system.update()
            self.served.append([passes[layer] for layer in range(len(self._routers))])
            context.alive()
        for hook in hooks:
            hook.remove()

    def _watch(self, layer: int, passes: dict[int, Served]) -> Any:
        sequences, chooses = self._recipe.global_batch, self._recipe.routing.kind != "expert_choice"

        def watch(router: Router, _inputs: object, routes: Any) -> None:
            experts = routes.experts.detach()
            taken = experts != DROPPED
            # A column of its own for what was dropped, cut off again.
            numbers = experts.masked_fill(~taken, router.experts).view(sequences, -1)
            each = torch.nn.functional.one_hot(numbers, router.experts + 1).sum(dim=1)[:, :-1]
            tokens = len(experts)
            passes[layer] = Served(
                counts=each.sum(dim=0).cpu(),
                most=int(each.max()),
                tokens=tokens,
                choices=tokens * router.top_k if chooses else 0,
                unserved=tokens - int(taken.any(dim=1).sum()),
            )

        return watch

    def _value(self, name: str, step: int) -> float:
        if name == "loss":
            return self.losses[step]
        if name == "unserved":
            return fmean(one.unserved / one.tokens for one in self.served[step])
        return fmean(float(getattr(one, name)) for one in self.served[step])

    def _allowed(self, router: Router, served: Served) -> bool:
        kind, capacity = self._recipe.routing.kind, router.capacity(self._recipe.sequence)
        if kind == "expert_choice":
            return bool((served.counts == capacity * self._recipe.global_batch).all())
        if kind == "capacity":
            return served.most <= capacity
        return int(served.counts.sum()) == served.choices and not served.unserved
