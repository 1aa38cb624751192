"""All-to-all exchanges of rows between ranks: one interface, several algorithms.

Importing this module is cheap; an algorithm loads torch when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

ALGORITHMS = ("flat",)
"""Names that ``make_all_to_all`` knows."""

TrafficKind = Literal["uniform", "zipf", "hot_rank", "idle_rank"]
TRAFFIC_KINDS: tuple[TrafficKind, ...] = get_args(TrafficKind)
"""Shapes of traffic that ``traffic.traffic_matrix`` makes, and explains."""


class AllToAll(Protocol):
    """An all-to-all algorithm, bound to its ranks when it is made."""

    def exchange(
        self,
        send: torch.Tensor,
        send_splits: list[int] | None,
        recv_splits: list[int] | None,
        out: torch.Tensor,
    ) -> None:
        """Send rows to every rank of the group and receive rows from every rank (collective).

        On CUDA it is enqueued on the current stream; on CPU ``out`` is complete on return.

        Args:
            send: contiguous, shape ``(sum(send_splits), *row)``: the rows for rank 0, then for rank 1, ...
            send_splits: rows for each rank, zeros allowed; None for equal shares.
            recv_splits: rows from each rank. They must be what the ranks send, which nobody verifies
                here (``flat.verify_splits`` does); None for equal shares.
            out: contiguous, shape ``(sum(recv_splits), *row)``: filled with the rows from rank 0, then rank 1, ...
        """


def make_all_to_all(name: str, group: dist.ProcessGroup) -> AllToAll:
    """The algorithm of that name over the ranks of ``group`` (collective).

    Raises:
        ValueError: no such algorithm; the message lists them.
    """
    if name == "flat":
        from ciera_piper_core.alltoall.flat import FlatAllToAll

        return FlatAllToAll(group)
    raise ValueError(f"unknown all-to-all algorithm {name!r}; known: {', '.join(ALGORITHMS)}")
