"""One rank of a world in a lab: checks an all-reduce and an all-to-all, and prints the bytes received."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def main(rank: int, world: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    total = torch.full((1000,), float(rank + 1))
    dist.all_reduce(total)
    assert total.eq(sum(range(1, world + 1))).all(), total
    mine = torch.arange(world * 1000) + rank * 10**6
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine)
    expected = torch.cat([torch.arange(1000) + rank * 1000 + peer * 10**6 for peer in range(world)])
    assert theirs.equal(expected), theirs
    dist.destroy_process_group()
    print(f"rank {rank} is right")


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
