"""The flat all-to-all: one library call in which every rank sends to every other directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence


class FlatAllToAll:
    """``torch.distributed.all_to_all_single`` behind the interface that all algorithms share."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def exchange(
        self,
        send: torch.Tensor,
        send_splits: list[int] | None,
        recv_splits: list[int] | None,
        out: torch.Tensor,
    ) -> None:
        """See ``ciera_piper_core.alltoall.AllToAll.exchange``."""
        dist.all_to_all_single(out, send, recv_splits, send_splits, group=self._group)


def verify_splits(
    group: dist.ProcessGroup,
    send_splits: Sequence[int],
    recv_splits: Sequence[int],
    device: torch.device | str = "cpu",
) -> None:
    """Refuse splits of which some pair of ranks holds two opinions (collective; once, before the exchanges).

    Libraries trust the counts: where they differ, gloo delivers garbage without a word and NCCL may
    hang. Every rank of the group raises, so that none waits for another.

    Args:
        send_splits, recv_splits: rows to and from each rank.
        device: where the group's collectives take their tensors.

    Raises:
        ValueError: rank i sends another number of rows to j than j expects; the message names the
            first such pair of each receiver.
    """
    world = dist.get_world_size(group)
    if len(send_splits) != world or len(recv_splits) != world:
        raise ValueError(f"{len(send_splits)} send and {len(recv_splits)} receive splits for {world} ranks")
    sent = torch.tensor(send_splits, dtype=torch.int64, device=device)
    announced = torch.empty_like(sent)
    dist.all_to_all_single(announced, sent, group=group)
    # Each rank's first disagreement as (sender, rows announced, rows expected); sender -1 for none.
    finding = torch.full((1, 3), -1, dtype=torch.int64)
    for sender, (rows, expected) in enumerate(zip(announced.tolist(), recv_splits, strict=True)):
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
