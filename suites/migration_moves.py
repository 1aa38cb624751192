"""The workload of ``migration``: a layer's experts that move to a better placement and back.

It imports torch, so the suite imports it when it sets up a case.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from bench.definitions import Work
from bench.suite import Workload
from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.alltoall.placement import placement_from_nodes
from ciera_piper_core.models import catalogue
from ciera_piper_core.models.feed_forward import RoutedExperts
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.scaling import scale
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.moe.expert_table import contiguous_table
from ciera_piper_core.moe.migration.mover import bytes_of_one, expert_stacks, move_experts, settle, table_with
from ciera_piper_core.moe.migration.solver import solve
from ciera_piper_core.training.optimizer import MasterWeights
from ciera_piper_core.training.recipe import Recipe, Routing
from suites.migration import NEVER
from suites.raw_transfer import node_of_rank
from suites.spread_layer import layer_of
from suites.tensors import count_wrong, fill, row_scale, tolerance
from suites.training_case import device_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.suite import Case, Context
    from ciera_piper_core.moe.expert_table import ExpertTable

NAME = "layer"
ROUNDS = 7
"""Of passes and moves that are compared; the first does not count."""


class MovingExperts(Workload):
    """One move an iteration, alternately there and back.

    Where a solver knows no better placement, two experts change places all the same, so that there is something
    to time.
    """

    def __init__(self, case: Case, context: Context) -> None:
        """Build the layer, route its tokens, and find the placements (collective)."""
        self._context, self._interval = context, int(case["interval"])
        self._threads_before = torch.get_num_threads()
        device = device_of(context.site)
        if device.type == "cpu":
            torch.set_num_threads(context.site.cores)
        group, self._rank = context.group.data, context.group.rank
        assert group is not None, "a group of two ranks or more has a data group"
        seed = context.site.seed
        self._layer, self._masters = _layer_of(case, group, node_of_rank(context), device, seed)
        self._algorithm = make_all_to_all("flat", group)
        self._seed = seed
        for (matrix, part), stack in self._stacks().items():
            for slot, expert in enumerate(self._layer.local_experts):
                stack[slot].copy_(self._value(matrix, part, expert, stack))
        self._masters.refresh()

        shape = (case["batch"], case["sequence"], layer_of(case)[1])
        dtype = self._layer.experts.up.dtype
        self._input = fill(torch.empty(shape, dtype=dtype, device=device), seed + 2 * self._rank).requires_grad_()
        self._upstream = fill(torch.empty(shape, dtype=dtype, device=device), seed + 2 * self._rank + 1)
        self._outputs: dict[str, torch.Tensor] = {}
        self._tables = self._solve(case)
        self._where = "before"
        each = bytes_of_one(self._stacks())
        self.work = Work(bytes=max(self._solution.most_sent, 1) * each)
        self._found = self._compare(each)

    def run(self) -> None:
        self._move("before" if self._where == "after" else "after")

    def check(self) -> int:
        """Elements of this rank's experts that are not theirs to the bit, and outputs that moving has changed."""
        wrong = 0
        for (matrix, part), stack in self._stacks().items():
            for slot, expert in enumerate(self._layer.local_experts):
                wrong += int((stack[slot] != self._value(matrix, part, expert, stack)).sum())
        for matrix, weight in self._layer.experts.named_parameters():
            master = self._masters.masters[f"{NAME}.experts.{matrix}"].detach()
            wrong += int((weight.detach() != master.to(weight.dtype)).sum())
        before = self._outputs["before"].double()
        allowed = tolerance(self._input.dtype, self._layer.experts.up.shape[1])
        return wrong + count_wrong(self._outputs["after"], before, allowed, scale=row_scale(before))

    def observations(self) -> Mapping[str, Sequence[float]]:
        return self._found

    def close(self) -> None:
        torch.set_num_threads(self._threads_before)

    def _solve(self, case: Case) -> dict[str, ExpertTable]:
        """The placements, found by what the tokens of all ranks choose."""
        self._pass("before")
        counts = self._layer.take_counts().cpu()
        dist.all_reduce(counts, group=self._layer.group)
        table, spare = self._layer.table, int(case["spare"])
        homes = [table.rank_of(expert) for expert in range(table.experts)]
        most = -(-table.experts // table.ranks) + spare
        started = time.perf_counter()
        self._solution = solve(
            counts.tolist(), homes, table.ranks, solver=case["solver"], most_experts=most if spare else None
        )
        self._solver_seconds = time.perf_counter() - started
        there = table_with(table, self._solution.after)
        return {
            "before": table,
            "after": there if there != table else table.swapped(table.held[0][0], table.held[1][0]),
        }

    def _compare(self, each: int) -> dict[str, Sequence[float]]:
        """Passes and moves by turns (collective)."""
        seconds: dict[str, list[float]] = {"before": [], "after": [], "move": []}
        for _ in range(ROUNDS):
            for where in ("before", "after"):
                if self._where != where:
                    seconds["move"].append(self._timed(self._move, where))
                seconds[where].append(self._timed(self._pass, where))
                self._context.alive()
            seconds["move"].append(self._timed(self._move, "before"))
        before, after, move = (seconds[name][1:] for name in ("before", "after", "move"))
        saved = median(before) - median(after)
        best = self._solution
        return {
            "load[experts=before]": [best.load_before],
            "load[experts=after]": [best.load_after],
            "pass_time[experts=before]": [1e6 * one for one in before],
            "pass_time[experts=after]": [1e6 * one for one in after],
            "moved_bytes": [float(best.most_sent * each)],
            "moved_experts": [float(len(best.moves))],
            "solver_time": [1e6 * self._solver_seconds],
            "payback": [min(median(move) / saved, NEVER) if saved > 0 else NEVER],
            "amortised_share": [one / (one + self._interval * median(after)) for one in move],
        }

    def _timed(self, what: Callable[[str], None], where: str) -> float:
        """Seconds on the slowest rank, after a barrier."""
        dist.barrier(group=self._layer.group)
        started = time.perf_counter()
        what(where)
        settle(self._input.device)
        return float(max(self._context.group.gather_objects(time.perf_counter() - started)))

    def _pass(self, where: str) -> None:
        output = self._layer(self._input)
        torch.autograd.grad(output, (self._input, *self._layer.parameters()), self._upstream)
        self._outputs[where] = output.detach()

    def _move(self, where: str) -> None:
        move_experts(self._layer, self._tables[where], self._masters, NAME, self._algorithm)
        self._where = where

    def _stacks(self) -> dict[tuple[str, str], torch.Tensor]:
        return expert_stacks(self._layer, self._masters, NAME)

    def _value(self, matrix: str, part: str, expert: int, stack: torch.Tensor) -> torch.Tensor:
        """What belongs to an expert, recognisable wherever it is."""
        kinds = sorted(self._stacks())
        seed = self._seed + 1000 + expert * len(kinds) + kinds.index((matrix, part))
        return fill(torch.empty(stack.shape[1:], dtype=stack.dtype, device=stack.device), seed, stack.shape[-1] ** -0.5)


def _layer_of(
    case: Case, group: dist.ProcessGroup, nodes: Sequence[int], device: torch.device, seed: int
) -> tuple[ExpertParallel, MasterWeights]:
    """The layer over all ranks, neighbouring experts together, with masters and moments."""
    layer, hidden = layer_of(case)
    assert layer.experts is not None
    routing = Routing(balance_weight=0.0, skew=float(case["skew"]))
    plain = RoutedExperts(layer.experts, hidden, dtype=torch.float32, device="meta", routing=routing)
    dispatcher = FlatDispatch(group, placement_from_nodes(nodes, "the launcher"), make_all_to_all("flat", group))
    table = contiguous_table(layer.experts.experts, dist.get_world_size(group), uneven=True)
    model = torch.nn.Module()
    spread: Any = ExpertParallel(plain, group, dispatcher, table)
    model.add_module(NAME, spread)
    model.to_empty(device=device)
    initialise(model, seed, experts_of=lambda _name: spread.local_experts)
    recipe = Recipe(scale(catalogue.load(case["model"]), case["scale"]), precision=case["precision"], routing=routing)
    return spread, MasterWeights(model, recipe)
