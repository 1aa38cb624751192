"""Migration while a model trains: counts what experts get, checks at intervals, and moves what pays."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.counts import group_device
from ciera_piper_core.moe.migration.costs import corrected, measure_costs
from ciera_piper_core.moe.migration.mover import move_experts, table_with
from ciera_piper_core.moe.migration.solver import load_factor
from ciera_piper_core.moe.migration.trigger import Costs, decide
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.alltoall import AllToAll
    from ciera_piper_core.moe.expert_parallel import ExpertParallel
    from ciera_piper_core.moe.migration.mover import Moved
    from ciera_piper_core.moe.migration.paper_swaps import Floats
    from ciera_piper_core.moe.migration.trigger import Decision, Policy
    from ciera_piper_core.training.optimizer import MasterWeights

FREE = Costs(0.0, 0.0, 0.0, 0)
"""Where nothing will be moved, so that no price was asked for."""


@dataclass(frozen=True)
class LayerMigration:
    """What became of one layer at one check.

    Attributes:
        layer: its name in the model. step: after which it was checked.
        decision: and why.
        moved: what the move took; None if there was none.
    """

    layer: str
    step: int
    decision: Decision
    moved: Moved | None


class Migrator:
    """Of the layers that a rank holds; see the module.

    All ranks of the group see the same counts and the same costs, and so decide alike without asking each
    other. Copies of an expert-parallel group are in the group too: they must keep one table, because
    gradients are summed over them slot by slot.

    Attributes:
        policy: as given.
        costs: of each layer, by name, once they were needed.
        history: of all checks; the same on all ranks but for what ``Moved`` says.
    """

    history: list[LayerMigration]
    costs: dict[str, Costs]

    def __init__(
        self,
        layers: Mapping[str, ExpertParallel],
        masters: MasterWeights,
        group: dist.ProcessGroup,
        policy: Policy,
        *,
        algorithms: Mapping[str, AllToAll] | None = None,
        costs: Costs | None = None,
    ) -> None:
        """Watch ``layers`` from now on.

        Args:
            layers: by their names in the model (``layers.3.routed_experts``), which begin the names of their
                parameters in ``masters``; the same ones on all ranks of ``group``.
            group: all ranks that hold these layers: one expert-parallel group, or its copies together.
            algorithms: what experts travel by, by layer, over the layer's group; None: flat, since a move is a few
                large messages.
            costs: of any layer; None to measure them when they are needed first.
        """
        self.policy, self.history = policy, []
        self._layers, self._masters, self._group = dict(layers), masters, group
        self._algorithms = dict(algorithms or {})
        for name, layer in self._layers.items():
            if name not in self._algorithms:
                self._algorithms[name] = make_all_to_all("flat", layer.group)
        self.costs = {} if costs is None else dict.fromkeys(self._layers, costs)
        self._steps: deque[torch.Tensor] = deque(maxlen=policy.window)
        for layer in self._layers.values():
            layer.take_counts()

    def maybe_migrate(self, step: int) -> list[LayerMigration]:
        """Take the counts of a step; move experts if it is time and it pays (collective over ``group``).

        Args:
            step: from 0; called by every rank after every ``update``, when gradients are cleared.

        Returns:
            the layers whose experts were moved, of this rank or of others; the same on all ranks.
        """
        if not self._layers:
            return []
        self._steps.append(self._new_counts())
        if (step + 1) % self.policy.check_every:
            return []
        with region("migration"):
            counts = torch.stack(tuple(self._steps)).to(group_device(self._group))
            self._steps.clear()
            dist.all_reduce(counts, group=self._group)
            parts = torch.split(counts, [layer.table.experts for layer in self._layers.values()], dim=1)
            checks = [
                self._check(name, step, part.cpu().numpy().astype(np.float64))
                for name, part in zip(self._layers, parts, strict=True)
            ]
        self.history += checks
        return [check for check in checks if check.moved is not None]

    def _new_counts(self) -> torch.Tensor:
        """Choices of each layer's experts since the last call, of this rank's tokens: ``(experts of all layers,)``."""
        return torch.cat([layer.take_counts().cpu() for layer in self._layers.values()])

    def _check(self, name: str, step: int, counts: Floats) -> LayerMigration:
        """Decide for one layer, and act.

        Args:
            counts: ``(steps, experts)``, of the whole group.
        """
        layer, ranks = self._layers[name], dist.get_world_size(self._layers[name].group)
        homes = tuple(layer.table.rank_of(expert) for expert in range(layer.table.experts))
        # Copies of the expert-parallel group have a part of the tokens each; about as many.
        counts = counts / (dist.get_world_size(self._group) / ranks)
        costs = FREE
        if load_factor(counts.sum(axis=0), homes, ranks) > self.policy.threshold:
            costs = self._costs_of(name, round(counts.sum() / len(counts) / ranks))
        decision = decide(counts, homes, ranks, self.policy, costs)
        moved = None
        if decision.moves:
            table = table_with(layer.table, decision.solution.after)
            moved = move_experts(layer, table, self._masters, name, self._algorithms[name])
            self.costs[name] = corrected(costs, decision.cost_seconds, moved.seconds, self._group)
        return LayerMigration(name, step, decision, moved)

    def _costs_of(self, name: str, copies: int) -> Costs:
        if name not in self.costs:
            self.costs[name] = measure_costs(
                self._layers[name], self._masters, name, copies, self._algorithms[name], self._group
            )
        return self.costs[name]
