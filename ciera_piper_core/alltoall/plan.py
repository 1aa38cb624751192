"""What an algorithm knows of one exchange's splits before it moves rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """Splits of an exchange, with what the algorithm that planned them adds.

    Attributes:
        send_splits, recv_splits: rows to and from each rank of the group; both None for equal shares.
        transit: for hierarchical algorithms, rows that pass through this rank. two_phase: shape
            ``(ranks of the node, nodes)``, from each neighbour to this rank's rail on each node.
            halo: shape ``(nodes, ranks of the node)``, from each node's rank on this rail to each neighbour.
        reverse_transit: the same for the answer, in which what was received is sent back.
        derived: what algorithms have worked out from the rest, by their name, to use it again.

    Raises:
        ValueError: one of the splits without the other.
    """

    send_splits: tuple[int, ...] | None
    recv_splits: tuple[int, ...] | None
    transit: tuple[tuple[int, ...], ...] | None = None
    reverse_transit: tuple[tuple[int, ...], ...] | None = None
    derived: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.send_splits is None) != (self.recv_splits is None):
            raise ValueError("send and receive splits are both given, or both None for equal shares")

    def reverse(self) -> Plan:
        """The plan of the answer: every row goes back to where it came from. It needs no communication."""
        return Plan(self.recv_splits, self.send_splits, self.reverse_transit, self.transit)
