"""A training system as a workload: one iteration is one step, and its losses are what it is judged by."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from bench.definitions import Ceiling, Work
from bench.suite import Case, ComparableWorkload, Forecast
from ciera_piper_core.training.regions import REGIONS, SHARES
from ciera_piper_core.training.wire_bytes import COLLECTIVES
from suites.peak_memory import PeakMemory
from suites.training_case import FIRST_STEPS, agreements, ranks_of, read_training
from suites.training_instruments import Anatomy, look_into
from suites.training_peak import peak_flops_per_second

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from bench.suite import Context, Value
    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.models.flops import Convention
    from ciera_piper_core.moe.route_counts import RouteCounts
    from ciera_piper_core.training.recipe import Recipe

CONVENTION: Convention = "causal"
"""Of ``models.flops``."""
VALIDATION_BATCHES = 2
LOOKED_INTO = 3
"""Steps with instruments."""
ORACLE_STEPS = 3
MOST_ORACLE_BYTES = 1 << 30
"""The check trains the plain model on one rank, if its training state is no larger."""
STATE_BYTES = 20
"""Of a parameter: master, gradient, two moments, working copy."""
PEAK = "peak_flops_per_second"


class TrainingWorkload(ComparableWorkload):
    """Trains as the case says, a step an iteration; the next batch is fetched before each.

    Attributes:
        losses: of all steps so far, mean cross-entropies in nats.
    """

    def __init__(self, case: Case, context: Context) -> None:
        from ciera_piper_core.training.batches import Batches

        self._case, self._context = case, context
        training = read_training(case, context.site.seed)
        self._training = training
        self._recipe = training.recipe
        self._batches = Batches(training.corpus, training.recipe)
        self.losses: list[float] = []
        self._validation: list[float] = []
        self._anatomy: Anatomy | None = None
        self._peak_bytes = 0
        self._peak = context.scratch.get(PEAK) or peak_flops_per_second(context, str(case["precision"]))
        self.work = work_of(self._recipe, self._peak)
        context.alive()
        ranks = ranks_of(context)
        self._memory = PeakMemory(context.site.device)
        self._system = training.system(training.recipe, ranks, training.options)
        self._routes = self._counted()
        self.settled_after = int(getattr(self._system, "settled_after", 0))
        self._batch = self._batches.batch(0)
        context.alive()

    def prepare(self) -> None:
        self._batch = self._batches.batch(len(self.losses))

    def run(self) -> None:
        self.losses.append(self._system.accumulate(self._batch))
        self._system.update()
        if self._routes is not None and len(self.losses) <= FIRST_STEPS:
            self._routes.end_step()
            if len(self.losses) == FIRST_STEPS:
                self._routes.close()

    def conditions(self) -> Mapping[str, Value]:
        recipe = self._recipe
        return {
            "weights": str(self._context.group.broadcast(digest(self._system.full_parameters()))),
            "data": digest({"first batch": self._batches.batch(0), "second": self._batches.batch(1)}),
            "tokens_per_step": recipe.tokens_per_step,
            "sequence": recipe.sequence,
            "microbatches": recipe.microbatches,
            "precision": recipe.precision,
            "gradient_precision": recipe.gradient_precision,
            "checkpointing": recipe.checkpointing,
            "optimizer": recipe.optimizer,
            "learning_rate": recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            "clip_norm": recipe.clip_norm,
            **{f"routing_{name}": value for name, value in asdict(recipe.routing).items()},
        }

    def forecast(self, profile: str) -> Forecast:
        from suites.training_forecast import forecast

        return forecast(self._training, self._system.ranks, self._context.alive, profile)

    def handed_on(self) -> Mapping[str, Value]:
        return {PEAK: self._peak} if self._peak else {}

    def series(self) -> Mapping[str, Sequence[float]]:
        return {"loss": self.losses, "validation_loss": self._validation}

    def choices(self) -> Sequence[Sequence[float]]:
        return () if self._routes is None else self._routes.shared(self._context.group.gather_objects)

    def inspect(self) -> None:
        if self._anatomy is not None:
            return
        self._peak_bytes = max(self._context.group.gather_objects(self._memory.added_bytes))
        self._validation = [self._validate()]
        self._anatomy = look_into(self._looked_into, LOOKED_INTO, self._context)

    def check(self) -> int | None:
        """Steps whose loss is not finite, or is too far from the plain model's.

        None if all are finite and the plain model does not fit on one rank.
        """
        self.inspect()
        wrong = sum(not math.isfinite(loss) for loss in self.losses)
        if parameters_of(self._recipe.architecture) * STATE_BYTES > MOST_ORACLE_BYTES:
            return wrong or None
        if self._context.site.rank == 0:
            wrong += self._wrong_by_plain()
        return wrong

    def observations(self) -> Mapping[str, Sequence[float]]:
        anatomy = self._anatomy
        if anatomy is None:
            return {}
        peak = {} if self._peak is None else {"peak_rate": [self._peak / 1e12]}
        return {
            **peak,
            "loss": self.losses,
            "validation_loss": self._validation,
            "peak_memory": [float(self._peak_bytes)],
            "exposed_communication": anatomy.exposed_seconds,
            "residual_share": anatomy.residual_shares,
            **{f"wire_bytes[collective={name}]": [anatomy.wire_bytes.get(name, 0.0)] for name in COLLECTIVES},
            **{f"region_time[region={name}]": anatomy.seconds.get(name, [0.0]) for name in REGIONS},
            **{f"communication_share[part={name}]": anatomy.shares.get(name, [0.0]) for name in SHARES},
        }

    def close(self) -> None:
        if self._routes is not None:
            self._routes.close()
        self._system.close()

    def _counted(self) -> RouteCounts | None:
        """Of the system's routers, where it has the plain model's, and where agreements ask for them."""
        from ciera_piper_core.moe.route_counts import RouteCounts

        recipe, model = self._recipe, self._system.model
        exact = recipe.precision == recipe.gradient_precision == "fp32"
        return RouteCounts(model, recipe.architecture) if exact and model is not None else None

    def _looked_into(self, step: int) -> None:
        """One more step; of what is looked into, the losses are no part of the series."""
        from ciera_piper_core.training.breakdown import marked_step

        marked_step(self._system, self._batches.batch(len(self.losses) + step))

    def _validate(self) -> float:
        return fmean(self._system.evaluate(self._batches.validation(place)) for place in range(VALIDATION_BATCHES))

    def _wrong_by_plain(self) -> int:
        """First steps whose loss is not the plain model's, on rank 0."""
        from ciera_piper_core.alltoall.placement import placement_from_nodes
        from ciera_piper_core.systems import load_system
        from ciera_piper_core.systems.system import Ranks

        # In half precision routes part from the first update on, so that only the first loss must agree.
        exact = self._recipe.precision == self._recipe.gradient_precision == "fp32"
        steps = min(ORACLE_STEPS if exact else 1, len(self.losses))
        ranks = Ranks(self._system.ranks.group, placement_from_nodes([0]), self._system.ranks.device)
        plain = load_system("plain")(self._recipe, ranks, {})
        right = []
        for step in range(steps):
            right.append(plain.accumulate(self._batches.batch(step)))
            plain.update()
            self._context.alive()
        plain.close()
        allowed = self._oracle_tolerance()
        return sum(
            not abs(loss - wanted) <= allowed * abs(wanted) for loss, wanted in zip(self.losses, right, strict=False)
        )

    def _oracle_tolerance(self) -> float:
        plain = Case({**self._case.params, "system": "plain"})
        return next(one.tolerance for one in agreements(self._case, plain) if one.series == "loss")


def work_of(recipe: Recipe, peak: float | None) -> Work:
    """What a step does; the peak is of all ranks together, FLOP/s."""
    from ciera_piper_core.models.flops import layer_flops, model_flops

    architecture, tokens = recipe.architecture, recipe.tokens_per_step
    layers = [layer_flops(layer, architecture.hidden, recipe.sequence, CONVENTION) for layer in architecture.layers]
    again = {
        "none": 0.0,
        "selective": sum(layer["attention_scores"] for layer in layers),
        "full": sum(sum(layer.values()) for layer in layers),
    }[recipe.checkpointing]
    needed = tokens * model_flops(architecture, recipe.sequence, CONVENTION).total
    source = "the peak itself"
    return Work(
        flops=needed,
        executed_flops=needed + tokens * again,
        peak_flops_per_second=peak,
        items=tokens,
        ceilings={"mfu": Ceiling(1.0, source), "hfu": Ceiling(1.0, source)},
    )


def parameters_of(architecture: Architecture) -> int:
    """Parameters of the model as it is trained."""
    from ciera_piper_core.models.parameters import model_parameters

    return model_parameters(architecture, mtp=False).total


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names, shapes, types and bits, 64 bits in hexadecimal; the order does not count."""
    import torch

    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach().cpu().contiguous()
        found.update(f"{name}:{tuple(whole.shape)}:{whole.dtype};".encode())
        found.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
