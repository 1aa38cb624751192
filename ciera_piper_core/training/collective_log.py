"""A log of every collective that this rank takes part in: in which group, in which order, how many bytes it sends.

From outside: while a log is kept, the methods of ``torch.distributed.ProcessGroup`` are wrapped, those of
all threads, so it knows those of every library that calls them; so are the exchanges within a
node of ``alltoall``, which may go around torch. What C++ sends by itself (functional collectives,
as ``DTensor.full_tensor`` makes them) is not seen.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ciera_piper_core.training.wire_bytes import KINDS, message_bytes, sent_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

NODE_EXCHANGE, RAIL_EXCHANGE = "exchange within a node", "exchange along a rail"
UNEQUAL = {"alltoall", "alltoall_base", "all_to_all_single", "gather", "scatter", NODE_EXCHANGE, RAIL_EXCHANGE}
"""Operations in which ranks rightly state different sizes."""
WORDS: dict[str, str] = {"send": "to", "recv": "from"}
MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class Channel:
    """Where messages keep an order of their own: a group, or in it one rank that sends to one other.

    Attributes:
        group: torch's name of it, the same on all its ranks.
        ranks: its ranks, by their number in the world.
        pair: places in ``ranks`` of sender and receiver; None for collectives of all.
    """

    group: str
    ranks: tuple[int, ...]
    pair: tuple[int, int] | None = None

    def __str__(self) -> str:
        whole = f"group {self.group} of ranks {', '.join(map(str, self.ranks))}"
        if self.pair is None:
            return whole
        return f"rank {self.ranks[self.pair[0]]} to rank {self.ranks[self.pair[1]]} in {whole}"

    @property
    def involved(self) -> tuple[int, ...]:
        """Ranks that see its messages."""
        return self.ranks if self.pair is None else tuple(self.ranks[place] for place in self.pair)


@dataclass(frozen=True)
class Call:
    """One message, or this rank's part of one collective.

    Attributes:
        operation: method of the process group; of two ranks' messages ``message`` on both.
        stated_bytes: that all ranks involved must state alike; -1 where they need not.
        kind: of ``wire_bytes``. sent_bytes: by this rank to others. input_bytes: that this rank puts in, what stays
            here included. In neither need ranks be alike.
    """

    operation: str
    stated_bytes: int
    kind: str = field(default="other", compare=False)
    sent_bytes: float = field(default=0.0, compare=False)
    input_bytes: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.operation if self.stated_bytes < 0 else f"{self.operation} of {self.stated_bytes} B"


@dataclass
class CollectiveLog:
    """What this rank did since the log was begun or cleared.

    Attributes:
        calls: by channel, in order; the place in it is the call's sequence number.
        sent: bytes that this rank sent, by kind of ``wire_bytes``.
        counts: calls, by kind.
    """

    calls: dict[Channel, list[Call]] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin anew; on all ranks at the same place, or orders will not agree."""
        for each in (self.calls, self.sent, self.counts):
            each.clear()

    def add(self, channel: Channel, call: Call) -> None:
        """One more call."""
        self.calls.setdefault(channel, []).append(call)
        if call.sent_bytes or call.operation != "message":
            self.sent[call.kind] = self.sent.get(call.kind, 0.0) + call.sent_bytes
        self.counts[call.kind] = self.counts.get(call.kind, 0) + 1


@contextmanager
def logging_collectives() -> Iterator[CollectiveLog]:
    """Keep a log of what is called inside; of any thread of this process."""
    import torch.distributed as dist

    from ciera_piper_core.alltoall.communicators import Communicators

    log, lock = CollectiveLog(), threading.Lock()
    # Collectives that call others inside are logged once.
    inside = threading.local()

    def wrapped(note: Callable[..., tuple[Channel, Call]], original: Callable[..., Any]) -> Any:
        def call(where: Any, *arguments: Any, **named: Any) -> Any:
            if getattr(inside, "any", False):
                return original(where, *arguments, **named)
            inside.any = True
            try:
                noted = note(where, (*arguments, *named.values()))
                with lock:
                    log.add(*noted)
                return original(where, *arguments, **named)
            finally:
                inside.any = False

        return call

    def of_group(name: str) -> Callable[..., tuple[Channel, Call]]:
        return lambda group, arguments: _noted(name, group, arguments)

    # As they lie in the classes: what getattr gives does not bind, so it must not be put back.
    owner: Any = dist.ProcessGroup
    patches: list[tuple[Any, str, Any, Any]] = [
        (owner, name, vars(owner)[name], wrapped(of_group(name), getattr(owner, name)))
        for name in KINDS
        if name in vars(owner)
    ]
    for method, note in (
        (Communicators.exchange_within_node, _exchanged_within_node),
        (Communicators.exchange_along_rail, _exchanged_along_rail),
        (Communicators.start_along_rail, _exchanged_along_rail),
        (Communicators.start_pieces, _exchanged_pieces),
    ):
        patches.append((Communicators, method.__name__, method, wrapped(note, method)))
    for where, name, _, changed in patches:
        setattr(where, name, changed)
    try:
        yield log
    finally:
        for where, name, original, _ in patches:
            setattr(where, name, original)


def differences(logs: Mapping[int, Mapping[Channel, Sequence[Call]]]) -> list[str]:
    """Where ranks do not agree on what was called in which order; a line each, the first of each channel.

    Args:
        logs: ``calls`` of every rank, by its number in the world. Ranks that are missing are not asked.
    """
    found = []
    for channel in sorted({channel for log in logs.values() for channel in log}, key=str):
        asked = [rank for rank in channel.involved if rank in logs]
        if not asked:
            continue
        lists = {rank: logs[rank].get(channel, ()) for rank in asked}
        first = asked[0]
        for rank in asked[1:]:
            if (line := _first_difference(channel, first, lists[first], rank, lists[rank])) is not None:
                found.append(line)
                break
        if len(found) == MOST_DIFFERENCES:
            break
    return found


def order_differences(log: CollectiveLog, group: Any) -> list[str]:
    """Of the ranks of ``group``, all of which call this at the same place (collective); the same on all."""
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group)
    calls = {channel: list(each) for channel, each in log.calls.items()}
    everyone: list[Any] = [None] * len(ranks)
    dist.all_gather_object(everyone, calls, group=group)
    return differences(dict(zip(ranks, everyone, strict=True)))


def _first_difference(
    channel: Channel, one: int, calls: Sequence[Call], other: int, others: Sequence[Call]
) -> str | None:
    for place, (left, right) in enumerate(zip(calls, others, strict=False)):
        if left != right:
            return f"{channel}: call {place} is {left} on rank {one}, but {right} on rank {other}"
    if len(calls) != len(others):
        longer, shorter = (one, other) if len(calls) > len(others) else (other, one)
        place = min(len(calls), len(others))
        more = (calls if longer == one else others)[place]
        return f"{channel}: call {place}, {more} on rank {longer}, was never made on rank {shorter}"
    return None


def _noted(name: str, group: Any, arguments: Sequence[Any]) -> tuple[Channel, Call]:
    channel, kind = _channel(group), KINDS[name]
    sent, put_in = sent_bytes(name, group, arguments), _input_bytes(name, arguments)
    if name not in WORDS:
        return channel, Call(name, -1 if name in UNEQUAL else put_in, kind, sent, put_in)
    me, peer = int(group.rank()), int(arguments[1])
    pair = (me, peer) if name == "send" else (peer, me)
    return Channel(channel.group, channel.ranks, pair), Call("message", put_in, kind, sent, put_in)


def _input_bytes(name: str, arguments: Sequence[Any]) -> int:
    if name == "barrier":
        return 0
    first = name in ("allreduce", "allreduce_coalesced", "broadcast", "reduce", *WORDS)
    return message_bytes(arguments[0 if first else 1])


def _exchanged_within_node(groups: Any, arguments: Sequence[Any]) -> tuple[Channel, Call]:
    return _exchanged(groups.internal, NODE_EXCHANGE, arguments)


def _exchanged_along_rail(groups: Any, arguments: Sequence[Any]) -> tuple[Channel, Call]:
    return _exchanged(groups.rail, RAIL_EXCHANGE, arguments)


def _exchanged_pieces(groups: Any, arguments: Sequence[Any]) -> tuple[Channel, Call]:
    """The same of messages in pieces of memory."""
    along, sources, _ = arguments
    operation, group, own = (
        (NODE_EXCHANGE, groups.internal, groups.local) if along == "node" else (RAIL_EXCHANGE, groups.rail, groups.node)
    )
    lengths = [sum(map(len, pieces)) for pieces in sources]
    put_in = sum(lengths)
    return _channel(group), Call(operation, -1, KINDS["alltoall_base"], float(put_in - lengths[own]), put_in)


def _exchanged(group: Any, operation: str, arguments: Sequence[Any]) -> tuple[Channel, Call]:
    """As ``alltoall_base`` in the group, through whatever it goes."""
    name = "alltoall_base"
    sent, put_in = sent_bytes(name, group, arguments), _input_bytes(name, arguments)
    return _channel(group), Call(operation, -1, KINDS[name], sent, put_in)


def _channel(group: Any) -> Channel:
    import torch.distributed as dist

    try:
        ranks = tuple(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        # Made without torch's registry: its ranks are known by their places only.
        ranks = tuple(range(int(group.size())))
    return Channel(str(group.group_name), ranks)
