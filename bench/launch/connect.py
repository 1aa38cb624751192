"""Joins a rank to its process groups: gloo for control, gloo or NCCL for the measured traffic."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from bench.measure.group import RankGroup

if TYPE_CHECKING:
    from torch.distributed import Store

    from bench.suite import Site

COLLECTIVE_TIMEOUT_S = 3600
"""The last resort alone: supervisors and watches find a hanging rank long before."""


def connect(site: Site, store: Store | None) -> RankGroup:
    """The rank's group (collective over all ranks).

    Args:
        site: rank, world and device of this process.
        store: rendezvous of the ranks; None in a world of one.
    """
    if site.device == "cuda":
        import torch

        torch.cuda.set_device(site.local_rank % torch.cuda.device_count())
    if site.world == 1:
        return RankGroup()
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=store, rank=site.rank, world_size=site.world, timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    )
    control = dist.new_group(backend="gloo")
    data = dist.new_group(backend="nccl") if site.device == "cuda" else dist.group.WORLD
    return RankGroup(site.rank, site.world, control, data)


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
