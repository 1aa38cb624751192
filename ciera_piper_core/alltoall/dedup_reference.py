"""The deduplicating dispatch of all ranks in one process, choice by choice: what it must deliver, to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ciera_piper_core.alltoall.dispatch import DROPPED, precise_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.alltoall.placement import Placement

Choice = tuple[int, int, int]
"""Source rank, token, and which of the token's choices."""


def arrivals(ranks: Sequence[torch.Tensor]) -> list[list[Choice]]:
    """By rank, the choices that arrive there, in the order that ``Dispatched.rows`` has.

    Args:
        ranks: by source rank, ``(n, k)``: the rank of each choice, or ``DROPPED``.
    """
    result: list[list[Choice]] = [[] for _ in ranks]
    for source, table in enumerate(ranks):
        for token, choices in enumerate(table.tolist()):
            for number, rank in enumerate(choices):
                if rank != DROPPED:
                    result[rank].append((source, token, number))
    return result


def combined_plainly(
    outputs: Sequence[torch.Tensor], ranks: Sequence[torch.Tensor], weights: Sequence[torch.Tensor] | None
) -> list[torch.Tensor]:
    """By source rank, the weighted sums as a dispatch without deduplication takes them.

    Every weighted output is rounded to its dtype on its way, and the source adds them in order of
    the ranks that they come from, then of their choices.

    Args:
        outputs: by rank, ``(m, d)``, rows in the order of ``arrivals``.
        weights: by source rank, ``(n, k)``.
    """
    dtype, width = outputs[0].dtype, outputs[0].shape[1]
    totals = [torch.zeros((len(table), width), dtype=precise_dtype(dtype)) for table in ranks]
    for rank, choices in enumerate(arrivals(ranks)):
        for row, (source, token, number) in enumerate(choices):
            weighted = _weighted(outputs[rank][row], weights, source, token, number)
            totals[source][token] += weighted.to(dtype).to(weighted.dtype)
    return [total.to(dtype) for total in totals]


def combined_in_steps(
    outputs: Sequence[torch.Tensor],
    ranks: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor] | None,
    placement: Placement,
) -> list[torch.Tensor]:
    """By source rank, the weighted sums: on each rank, then of its node, then of all nodes, rounded after each.

    Nodes of unequal size are added in order of the ranks that their sums come through, others in order of node.
    """
    dtype, width = outputs[0].dtype, outputs[0].shape[1]
    precise = precise_dtype(dtype)
    on_rank: dict[tuple[int, int, int], torch.Tensor] = {}
    for rank, choices in enumerate(arrivals(ranks)):
        for row, (source, token, number) in enumerate(choices):
            weighted = _weighted(outputs[rank][row], weights, source, token, number)
            so_far = on_rank.get((source, token, rank))
            on_rank[source, token, rank] = weighted if so_far is None else so_far + weighted
    results = []
    for source, table in enumerate(ranks):
        local = placement.local_index(source)
        nodes = list(placement.nodes)
        if not placement.even:
            nodes.sort(key=lambda node: node[local % len(node)])
        total = torch.zeros((len(table), width), dtype=precise)
        for token in range(len(table)):
            for node in nodes:
                members = node if placement.even else sorted(node)
                parts = [on_rank[key] for rank in members if (key := (source, token, rank)) in on_rank]
                if parts:
                    of_node = torch.zeros(width, dtype=precise)
                    for part in parts:
                        of_node += part.to(dtype).to(precise)
                    total[token] += of_node.to(dtype).to(precise)
        results.append(total.to(dtype))
    return results


def _weighted(
    output: torch.Tensor, weights: Sequence[torch.Tensor] | None, source: int, token: int, number: int
) -> torch.Tensor:
    precise = output.to(precise_dtype(output.dtype))
    return precise if weights is None else precise * weights[source][token, number].to(torch.float32)
