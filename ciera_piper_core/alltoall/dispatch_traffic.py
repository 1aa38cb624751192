"""What a dispatch of routed tokens sends: the bytes of one copy a choice, and those that went over the links."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class DispatchTraffic:
    """Bytes of one dispatch that leave a rank (or all ranks, see ``__add__``); a combine sends as many rows back.

    Logical bytes are a row for each choice whose expert is on another rank: what a dispatch without
    deduplication sends. What stays on its rank counts nowhere.

    Attributes:
        logical_between, logical_within: to ranks of other nodes, and of the own node.
        sent_between, sent_within: rows that were sent over these links. Within a node that includes
            what is passed on for other nodes.
        routing_between, routing_within: what was sent beside the rows: which choice is whose, weights, counts.
    """

    logical_between: int = 0
    logical_within: int = 0
    sent_between: int = 0
    sent_within: int = 0
    routing_between: int = 0
    routing_within: int = 0

    def __add__(self, other: DispatchTraffic) -> DispatchTraffic:
        """The traffic of both together."""
        return DispatchTraffic(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )

    @property
    def share_between(self) -> float | None:
        """Bytes sent between nodes, routing included, over the logical ones; None where nothing had to cross."""
        if not self.logical_between:
            return None
        return (self.sent_between + self.routing_between) / self.logical_between


def expected_share(nodes: int, top_k: int, experts: int | None = None) -> float:
    """Rows that cross between nodes with deduplication over those without, under uniform routing.

    A token's ``top_k`` choices touch a node with some probability p, so it is sent to
    ``(nodes - 1) * p`` other nodes on average; without deduplication ``top_k * (nodes - 1) / nodes``
    of its copies cross. The source's place does not matter, nor the number of ranks on a node.
    (After X-MoE's redundancy-bypassing dispatch.)

    Args:
        nodes: with as many experts each.
        top_k: choices of a token.
        experts: if given, a token's choices are distinct among so many; None for independent ones,
            which is the limit for many experts: 0.45 for 4 nodes and top-8.

    Raises:
        ValueError: numbers below one, experts that do not divide, or fewer experts than choices.
    """
    if nodes < 1 or top_k < 1:
        raise ValueError(f"routing of {top_k} choices over {nodes} nodes")
    if experts is None:
        missed = (1 - 1 / nodes) ** top_k
    else:
        if experts % nodes or experts < top_k:
            raise ValueError(f"{experts} experts: it takes a multiple of {nodes} nodes, and {top_k} or more")
        missed = math.comb(experts - experts // nodes, top_k) / math.comb(experts, top_k)
    return nodes * (1 - missed) / top_k
