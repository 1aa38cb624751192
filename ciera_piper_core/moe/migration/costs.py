"""What moving an expert costs and what a token copy costs, measured on the ranks that would move."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.counts import group_device
from ciera_piper_core.moe.grouped import Experts, group_ends, grouped_experts
from ciera_piper_core.moe.migration.mover import bytes_of_one, expert_stacks, move_experts, settle
from ciera_piper_core.moe.migration.trigger import Costs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.alltoall import AllToAll
    from ciera_piper_core.moe.expert_parallel import ExpertParallel
    from ciera_piper_core.training.optimizer import MasterWeights

REPEATS = 3
"""Of which the median counts, after one that does not."""

MOST_CORRECTION = 4.0

EXCHANGES = 4
"""Of a token copy's row in a step: to its expert and back, forward and backward."""


def measure_costs(
    layer: ExpertParallel, masters: MasterWeights, name: str, copies: int, algorithm: AllToAll, group: dist.ProcessGroup
) -> Costs:
    """Costs of one layer (collective over ``group``): the slowest rank's, the same on all ranks.

    A token copy: the experts' products are timed, forward and backward, with some rows and with twice as many, and
    the exchange, with the bytes of one expert in equal shares to all ranks and with next to none. A move:
    two experts change places and change back. Afterwards all weights and state are what they were, to the bit.

    Args:
        layer: of two ranks or more.
        masters, name: see ``mover.move_experts``.
        copies: token copies of a rank in a step, on average.
        algorithm: that rows and experts travel by, over the layer's group.
        group: the ranks that must agree: the layer's group, or several such groups.
    """
    experts, rows, table = layer.experts, max(copies, 1), layer.table
    each = bytes_of_one(expert_stacks(layer, masters, name))
    device = experts.up.device
    once, twice = (_median_seconds(_products(experts, number), device) for number in (rows, 2 * rows))
    share = -(-each // table.ranks)
    some, none = (_median_seconds(_exchange(algorithm, size, table.ranks, device), device) for size in (share, 1))
    per_byte = max(some - none, 0.0) / (share * table.ranks)
    swapped, moves = table.swapped(table.held[0][0], table.held[1][0]), []
    for _ in range(REPEATS + 1):
        moves += [move_experts(layer, there, masters, name, algorithm).seconds for there in (swapped, table)]
    row_bytes = experts.up.shape[2] * experts.up.itemsize
    per_copy = max(twice - once, 0.0) / rows + EXCHANGES * row_bytes * per_byte
    per_move = max(statistics.median(moves[2:]) - each * per_byte, 0.0)
    measured = torch.tensor([per_copy, per_byte, per_move], dtype=torch.float64, device=group_device(group))
    dist.all_reduce(measured, dist.ReduceOp.MAX, group=group)
    seconds_per_copy, seconds_per_byte, seconds_per_move = measured.tolist()
    return Costs(seconds_per_copy, seconds_per_byte, seconds_per_move, each)


def corrected(costs: Costs, predicted_seconds: float, seconds: float, group: dist.ProcessGroup) -> Costs:
    """``costs`` after a move that was predicted and took ``seconds`` on this rank (collective over ``group``).

    One move counts as much as all that was known before, and at most ``MOST_CORRECTION`` times it: a rank that
    was held up once must not forbid all moves from then on.
    """
    slowest = torch.tensor([seconds], dtype=torch.float64, device=group_device(group))
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    if not predicted_seconds > 0:
        return replace(costs, seconds_per_move=float(slowest))
    factor = (1 + min(float(slowest) / predicted_seconds, MOST_CORRECTION)) / 2
    return replace(
        costs,
        seconds_per_move=costs.seconds_per_move * factor,
        seconds_per_byte=costs.seconds_per_byte * factor,
    )


def _products(experts: Experts, rows: int) -> Callable[[], object]:
    weights = {name: weight.detach().requires_grad_() for name, weight in experts.named_parameters()}
    number, _, hidden = experts.up.shape
    ends = group_ends([rows * (e + 1) // number - rows * e // number for e in range(number)], experts.up.device)
    tokens = torch.ones(rows, hidden, dtype=experts.up.dtype, device=experts.up.device, requires_grad=True)
    stand_in = cast("Experts", SimpleNamespace(**{"gate": None, **weights}))

    def once() -> object:
        with torch.enable_grad():
            output = grouped_experts(stand_in, tokens, ends)
        return torch.autograd.grad(output, (tokens, *weights.values()), torch.ones_like(output))

    return once


def _exchange(algorithm: AllToAll, share: int, ranks: int, device: torch.device) -> Callable[[], object]:
    send = torch.zeros(ranks, share, dtype=torch.uint8, device=device)
    out = torch.empty_like(send)
    return lambda: algorithm.exchange(send, None, None, out)


def _median_seconds(once: Callable[[], object], device: torch.device) -> float:
    seconds = []
    for _ in range(REPEATS + 1):
        settle(device)
        started = time.perf_counter()
        once()
        settle(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])
