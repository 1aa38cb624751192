"""Joins a rank to its process groups: gloo for control, gloo or NCCL for the measured traffic."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from bench.measure.group import RankGroup

if TYPE_CHECKING:
    from torch.distributed import Store

COLLECTIVE_TIMEOUT_S = 3600
"""The last resort alone: supervisors and watches find a hanging rank long before."""


def connect(rank: int, world: int, store: Store | None) -> RankGroup:
    """The rank's group over gloo, for control and for traffic (collective over all ranks).

    Args:
        store: rendezvous of the ranks; None in a world of one.
    """
    if world == 1:
        return RankGroup()
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    )
    return RankGroup(rank, world, control=dist.new_group(backend="gloo"), data=dist.group.WORLD)


def with_nccl(group: RankGroup, local_rank: int) -> RankGroup:
    """The same ranks, each on its own GPU, with traffic over NCCL (collective over all ranks)."""
    import torch

    torch.cuda.set_device(local_rank)
    if group.world == 1:
        return group
    import torch.distributed as dist

    return RankGroup(group.rank, group.world, control=group.control, data=dist.new_group(backend="nccl"))


def disconnect(group: RankGroup) -> None:
    """Leave together: a rank that leaves early would show its peers an error that is none."""
    if group.world == 1:
        return
    import torch.distributed as dist

    group.barrier()
    dist.destroy_process_group()


def file_store(path: str, world: int) -> Store:
    """Rendezvous of ranks on one host through a file: it needs no port, so none can be taken."""
    from torch.distributed import FileStore

    return FileStore(path, world)
