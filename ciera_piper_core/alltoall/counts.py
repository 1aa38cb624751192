"""Counts of rows before the rows themselves: who sends how many to whom, and whether all agree on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def group_device(group: dist.ProcessGroup) -> torch.device:
    """Where the group's collectives take small host data: the CPU if it can, else the current GPU."""
    backend = dist.get_backend(group)
    if "nccl" in backend and "gloo" not in backend:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@region("alltoall.counts")
def exchange_counts(
    group: dist.ProcessGroup, send_splits: Sequence[int], device: torch.device | str | None = None
) -> list[int]:
    """Learn how many rows each rank sends here (collective).

    Args:
        send_splits: rows for each rank.
        device: where the group's collectives take their tensors; None to ask the group.

    Returns:
        ``recv_splits``: rows from each rank.

    Raises:
        ValueError: splits for another number of ranks, or a negative one.
    """
    _require_splits(send_splits, dist.get_world_size(group), "send")
    sent = torch.tensor(list(send_splits), dtype=torch.int64, device=device or group_device(group))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    counts: list[int] = received.tolist()
    return counts


@region("alltoall.counts")
def exchange_vectors(
    group: dist.ProcessGroup, vectors: torch.Tensor, exchange: Callable[[torch.Tensor, torch.Tensor], None]
) -> torch.Tensor:
    """Send a vector of counts to each rank of ``group`` and receive one from each (collective).

    Args:
        exchange: equal shares of a tensor (its second argument) into another (its first) among these ranks.
        vectors: shape ``(ranks, counts)``, int64, on the CPU: a row for each rank.

    Returns:
        The same shape, on the CPU: a row from each rank.
    """
    sent = vectors.contiguous().to(group_device(group))
    received = torch.empty_like(sent)
    exchange(received, sent)
    return received.cpu()


def verify_splits(
    group: dist.ProcessGroup,
    send_splits: Sequence[int],
    recv_splits: Sequence[int],
    device: torch.device | str | None = None,
) -> None:
    """Refuse splits of which some pair of ranks holds two opinions (collective).

    Libraries trust the counts: where they differ, gloo delivers garbage without a word and NCCL may
    hang. Every rank of the group raises, so that none waits for another.

    Args:
        send_splits, recv_splits: rows to and from each rank.
        device: where the group's collectives take their tensors; None to ask the group.

    Raises:
        ValueError: rank i sends another number of rows to j than j expects; the message names the
            first such pair of each receiver.
    """
    world = dist.get_world_size(group)
    if len(send_splits) != world or len(recv_splits) != world:
        raise ValueError(f"{len(send_splits)} send and {len(recv_splits)} receive splits for {world} ranks")
    device = device or group_device(group)
    announced = exchange_counts(group, send_splits, device)
    # Each rank's first disagreement as (sender, rows announced, rows expected); sender -1 for none.
    finding = torch.full((1, 3), -1, dtype=torch.int64)
    for sender, (rows, expected) in enumerate(zip(announced, recv_splits, strict=True)):
        if rows != expected:
            finding = torch.tensor([[sender, rows, expected]], dtype=torch.int64)
            break
    findings = torch.empty((world, 3), dtype=torch.int64, device=device)
    dist.all_gather_single(findings, finding.to(device), group=group)
    faults = [
        f"rank {sender} sends {rows} rows to rank {receiver}, which expects {expected}"
        for receiver, (sender, rows, expected) in enumerate(findings.tolist())
        if sender >= 0
    ]
    if faults:
        raise ValueError("; ".join(faults))


def checked_splits(
    send_splits: Sequence[int] | None, recv_splits: Sequence[int] | None, world: int
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Both splits as tuples, or both None.

    Raises:
        ValueError: one without the other, another number of ranks, or a negative number of rows.
    """
    if send_splits is None or recv_splits is None:
        if send_splits is not recv_splits:
            raise ValueError("send and receive splits are both given, or both None for equal shares")
        return None, None
    _require_splits(send_splits, world, "send")
    _require_splits(recv_splits, world, "receive")
    return tuple(send_splits), tuple(recv_splits)


def _require_splits(splits: Sequence[int], world: int, which: str) -> None:
    if len(splits) != world:
        raise ValueError(f"{len(splits)} {which} splits for {world} ranks")
    if splits and min(splits) < 0:
        rank = next(rank for rank, rows in enumerate(splits) if rows < 0)
        raise ValueError(f"{which} splits ask for {splits[rank]} rows with rank {rank}; rows are counted from 0")
