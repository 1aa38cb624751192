"""What one rank sends in one collective: the bytes on the wire that nccl-tests' bus bandwidth counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TOTAL = "total"
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast", "other", TOTAL)
"""Kinds of messages, and all of them together."""

KINDS: dict[str, str] = {
    "allgather": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "send": "send_recv",
    "recv": "send_recv",
    "broadcast": "broadcast",
    "reduce": "other",
    "gather": "other",
    "scatter": "other",
    "barrier": "other",
}
"""By method of a process group, the kind of message."""


def sent_bytes(name: str, group: Any, arguments: Sequence[Any]) -> float:
    """What one rank sends in one call, on average over ranks where the algorithm decides who sends.

    Args:
        name: of the method. arguments: of it, all in order.
    """
    n, me = int(group.size()), int(group.rank())
    if n < 2 or name in ("recv", "barrier"):
        return 0.0
    kind = KINDS[name]
    if kind == "all_gather":
        return message_bytes(arguments[1]) * (n - 1)
    if kind == "reduce_scatter":
        return message_bytes(arguments[1]) * (n - 1) / n
    if kind == "all_reduce":
        return message_bytes(arguments[0]) * 2 * (n - 1) / n
    if kind == "broadcast" or name == "reduce":
        return message_bytes(arguments[0]) * (n - 1) / n
    if kind == "all_to_all":
        return _all_to_all_bytes(name, me, n, arguments)
    if name in ("gather", "scatter"):
        root = int(arguments[2].rootRank)
        # Of a gather its senders send all that they put in, of a scatter the root all but its own share.
        return message_bytes(arguments[1]) * ((me != root) if name == "gather" else (n - 1) / n * (me == root))
    return float(message_bytes(arguments[0]))


def message_bytes(value: Any) -> int:
    """Of a tensor, or of all tensors in lists of them."""
    if isinstance(value, (list, tuple)):
        return sum(message_bytes(part) for part in value)
    return int(value.numel() * value.element_size())


def _all_to_all_bytes(name: str, me: int, n: int, arguments: Sequence[Any]) -> float:
    """All rows but those that stay on this rank."""
    if name == "alltoall":
        return float(sum(message_bytes(part) for peer, part in enumerate(arguments[1]) if peer != me))
    whole = message_bytes(arguments[1])
    splits = [int(rows) for rows in arguments[3] or ()] if len(arguments) > 3 else []
    if sum(splits):
        return whole * (1 - splits[me] / sum(splits))
    return whole * (n - 1) / n
