"""Counts what this rank sends, by kind of message, in every collective that goes through torch's process groups.

From outside: while it counts, the methods of ``torch.distributed.ProcessGroup`` are wrapped, those of
all threads. What C++ sends by itself (functional collectives) is not seen.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    "broadcast": "broadcast",
    "reduce": "other",
    "gather": "other",
    "scatter": "other",
}
"""By method of a process group, the kind of message."""


@contextmanager
def counting() -> Iterator[dict[str, float]]:
    """Bytes that this rank sends meanwhile, by kind; those of nccl-tests' bus bandwidth, of a ring where it is one."""
    import torch.distributed as dist

    group_type: Any = dist.ProcessGroup
    sent: dict[str, float] = {}
    lock = threading.Lock()
    # As they lie in the class: what getattr gives does not bind, so it must not be put back.
    originals = {name: vars(group_type)[name] for name in KINDS if name in vars(group_type)}
    # Collectives that call others inside are counted once.
    inside = threading.local()

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **named: Any) -> Any:
            if getattr(inside, "any", False):
                return original(group, *arguments, **named)
            inside.any = True
            try:
                kind = KINDS[name]
                count = sent_bytes(name, kind, group, (*arguments, *named.values()))
                with lock:
                    sent[kind] = sent.get(kind, 0.0) + count
                return original(group, *arguments, **named)
            finally:
                inside.any = False

        return call

    for name in originals:
        setattr(group_type, name, wrapped(name, getattr(group_type, name)))
    try:
        yield sent
    finally:
        for name, original in originals.items():
            setattr(group_type, name, original)


def sent_bytes(name: str, kind: str, group: Any, arguments: Sequence[Any]) -> float:
    """What one rank sends in one call, on average over ranks where the algorithm decides who sends."""
    n = int(group.size())
    if n < 2:
        return 0.0
    if kind == "all_gather":
        return _bytes(arguments[1]) * (n - 1)
    if kind == "reduce_scatter":
        return _bytes(arguments[1]) * (n - 1) / n
    if kind == "all_reduce":
        return _bytes(arguments[0]) * 2 * (n - 1) / n
    if kind == "broadcast":
        return _bytes(arguments[0]) * (n - 1) / n
    if kind == "all_to_all":
        return _all_to_all_bytes(name, group, arguments)
    return float(_bytes(arguments[0]))


def _all_to_all_bytes(name: str, group: Any, arguments: Sequence[Any]) -> float:
    """All rows but those that stay on this rank."""
    if name == "alltoall":
        return float(sum(_bytes(part) for peer, part in enumerate(arguments[1]) if peer != group.rank()))
    whole, n = _bytes(arguments[1]), int(group.size())
    splits = [int(rows) for rows in arguments[3] or ()] if len(arguments) > 3 else []
    if sum(splits):
        return whole * (1 - splits[int(group.rank())] / sum(splits))
    return whole * (n - 1) / n


def _bytes(value: Any) -> int:
    """Of a tensor, or of all tensors in lists of them."""
    if isinstance(value, (list, tuple)):
        return sum(_bytes(part) for part in value)
    return int(value.numel() * value.element_size())
