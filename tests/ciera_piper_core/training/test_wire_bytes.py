"""Bytes that a rank sends, counted in real gloo worlds against what each operation must send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.training.collective_log import logging_collectives
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.suite import Context

WORLD = 4
F32 = 4


def _uneven(group: Any, rank: int) -> None:
    # Rank r sends i rows to rank i: row counts of what it gets are all its own rank.
    splits = list(range(WORLD))
    dist.all_to_all_single(
        torch.empty(rank * WORLD, 2), torch.ones(sum(splits), 2), [rank] * WORLD, splits, group=group
    )


CALLS: dict[str, tuple[str, Callable[[Any, int], object], Callable[[int], float]]] = {
    "all_gather": (
        "all_gather",
        lambda group, rank: dist.all_gather([torch.empty(10) for _ in range(WORLD)], torch.ones(10), group=group),
        lambda rank: 3 * 10 * F32,
    ),
    "all_gather_into_tensor": (
        "all_gather",
        lambda group, rank: dist.all_gather_into_tensor(torch.empty(WORLD * 10), torch.ones(10), group=group),
        lambda rank: 3 * 10 * F32,
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter",
        lambda group, rank: dist.reduce_scatter_tensor(torch.empty(10), torch.ones(WORLD * 10), group=group),
        lambda rank: 3 * 10 * F32,
    ),
    "all_reduce": (
        "all_reduce",
        lambda group, rank: dist.all_reduce(torch.ones(40), group=group),
        lambda rank: 2 * 3 / 4 * 40 * F32,
    ),
    "all_to_all_single": (
        "all_to_all",
        lambda group, rank: dist.all_to_all_single(torch.empty(40), torch.ones(40), group=group),
        lambda rank: 3 / 4 * 40 * F32,
    ),
    "uneven all_to_all_single": ("all_to_all", _uneven, lambda rank: (6 - rank) * 2 * F32),
    "broadcast": (
        "broadcast",
        lambda group, rank: dist.broadcast(torch.ones(40), src=0, group=group),
        lambda rank: 3 / 4 * 40 * F32,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_collective_sends_what_it_must(name: str, tmp_path: Path) -> None:
    kind, call, expected = CALLS[name]

    def body(context: Context) -> dict[str, float]:
        with logging_collectives() as log:
            call(context.group.data, context.site.rank)
        # Uncounted, and nothing is left behind that breaks it.
        call(context.group.data, context.site.rank)
        return log.sent

    found = run_world(WORLD, body, tmp_path)
    assert found == [{kind: pytest.approx(expected(rank))} for rank in range(WORLD)]


def test_messages_between_two_ranks_count_at_their_sender(tmp_path: Path) -> None:
    def body(context: Context) -> dict[str, float]:
        rank, group = context.site.rank, context.group.data
        with logging_collectives() as log:
            if rank == 0:
                dist.send(torch.ones(10), 1, group=group)
            else:
                dist.recv(torch.empty(10), 0, group=group)
        return log.sent

    assert run_world(2, body, tmp_path) == [{"send_recv": 10 * F32}, {}]


def test_a_root_sends_or_takes_what_gather_and_scatter_state(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        rank, group, part = context.site.rank, context.group.data, torch.ones(10)
        parts = [torch.empty(10) for _ in range(WORLD)]
        found = []
        calls: tuple[Callable[[], object], ...] = (
            lambda: dist.gather(part, parts if rank == 1 else None, 1, group=group),
            lambda: dist.scatter(part, parts if rank == 1 else None, 1, group=group),
            lambda: dist.reduce(part, 1, group=group),
        )
        for call in calls:
            with logging_collectives() as log:
                call()
            found.append(log.sent)
        return found[0], found[1], found[2]

    for rank, (gathered, scattered, reduced) in enumerate(run_world(WORLD, body, tmp_path)):
        assert gathered == {"other": 0.0 if rank == 1 else 10 * F32}
        assert scattered == {"other": 3 * 10 * F32 if rank == 1 else 0.0}
        assert reduced == {"other": pytest.approx(3 / 4 * 10 * F32)}
