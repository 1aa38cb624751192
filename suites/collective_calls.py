"""The six collective operations: for each, its buffers, its call and what must come out.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from suites.exchange import Exchange, KeyedData, Part, filled

if TYPE_CHECKING:
    from bench.definitions import Work
    from bench.suite import Context

ROOT = 0
"""The rank that broadcasts."""


def collective(op: str, size: int, dtype: torch.dtype, work: Work, context: Context) -> Exchange:
    """The exchange of one operation on this rank (no communication yet).

    Args:
        op: a name of ``bench.definitions.BUSBW_FACTORS``.
        size: S of the bandwidth definitions in bytes, a whole number of elements a rank.
    """
    rank, ranks, group = context.group.rank, context.group.world, context.group.data
    data = KeyedData(context.site.seed, ranks, summed=op in ("all_reduce", "reduce_scatter"))
    elements = size // dtype.itemsize
    share = elements // ranks
    empty = partial(torch.empty, dtype=dtype, device=context.site.device)

    def sent(count: int) -> torch.Tensor:
        return filled(empty(count), data, rank)

    if op == "all_gather":
        received = empty(elements)
        call = partial(dist.all_gather_single, received, sent(share), group=group)
        return Exchange(call, received, [Part(sender, 0, share) for sender in range(ranks)], data, work)
    if op == "reduce_scatter":
        received = empty(share)
        call = partial(dist.reduce_scatter_single, received, sent(elements), group=group)
        return Exchange(call, received, [Part(None, rank * share, share)], data, work)
    if op == "all_to_all":
        received = empty(elements)
        call = partial(dist.all_to_all_single, received, sent(elements), group=group)
        parts = [Part(sender, rank * share, share) for sender in range(ranks)]
        return Exchange(call, received, parts, data, work)
    if op == "all_reduce":
        received = empty(elements)
        call = partial(dist.all_reduce, received, group=group)
        return Exchange(call, received, [Part(None, 0, elements)], data, work, source=sent(elements), refill=True)
    if op == "broadcast":
        received = empty(elements)
        call = partial(dist.broadcast, received, group=group, group_src=ROOT)
        source = sent(elements) if rank == ROOT else None
        return Exchange(call, received, [Part(ROOT, 0, elements)], data, work, source=source)
    if op == "send_recv":
        received = empty(elements)
        call = partial(ring_exchange, ring_operations(sent(elements), received, group, rank, ranks))
        return Exchange(call, received, [Part((rank - 1) % ranks, 0, elements)], data, work)
    raise ValueError(f"unknown operation {op!r}")


def ring_operations(
    send: torch.Tensor, received: torch.Tensor, group: dist.ProcessGroup | None, rank: int, ranks: int
) -> list[dist.P2POp]:
    """Send to the next rank and receive from the previous one, as nccl-tests' sendrecv does."""
    return [
        dist.P2POp(dist.isend, send, group=group, group_peer=(rank + 1) % ranks),
        dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % ranks),
    ]


def ring_exchange(operations: list[dist.P2POp]) -> None:
    """Start the operations together and wait for all of them (on CUDA: make the stream wait)."""
    for request in dist.batch_isend_irecv(operations):
        request.wait()
