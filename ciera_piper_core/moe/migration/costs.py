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
from ciera_piper_core.moe.migration.mover import settle
from ciera_piper_core.moe.migration.trigger import Costs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.alltoall import AllToAll
    from ciera_piper_core.moe.expert_parallel import ExpertParallel

REPEATS = 5
"""Of which the median counts, after one that does not."""

MOST_CORRECTION = 4.0

EXCHANGES = 4
"""Of a token copy's row in a step: to its expert and back, forward and backward."""


def measure_costs(
    layer: ExpertParallel, copies: int, bytes_per_expert: int, algorithm: AllToAll, group: dist.ProcessGroup
) -> Costs:
    """Costs of one layer (collective over ``group``): the slowest rank's, the same on all ranks.

    The experts' products are timed, forward and backward, with some rows and with twice as many; the exchange with
    the bytes of one expert, in equal shares to all ranks, and with next to none. Weights and gradients are not
    touched.

    Args:
        layer: its experts and its group are used.
        copies: token copies of a rank in a step, on average.
        bytes_per_expert: that travel with one.
        algorithm: that rows and experts travel by, over the layer's group.
        group: the ranks that must agree: the layer's group, or several such groups.
    """
    experts, rows = layer.experts, max(copies, 1)
    ranks, device = dist.get_world_size(layer.group), experts.up.device
    once, twice = (_median_seconds(_products(experts, number), device) for number in (rows, 2 * rows))
    share = -(-bytes_per_expert // ranks)
    some, none = (_median_seconds(_exchange(algorithm, size, ranks, device), device) for size in (share, 1))
    row_bytes = experts.up.shape[2] * experts.up.itemsize
    seconds_per_byte = max(some - none, 0.0) / (share * ranks)
    measured = torch.tensor(
        [max(twice - once, 0.0) / rows + EXCHANGES * row_bytes * seconds_per_byte, seconds_per_byte, none],
        dtype=torch.float64,
        device=device,
    )
    dist.all_reduce(measured, dist.ReduceOp.MAX, group=group)
    per_copy, per_byte, per_move = measured.tolist()
    return Costs(per_copy, per_byte, per_move, bytes_per_expert)


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
