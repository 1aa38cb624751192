"""One leg of a way that takes several: rows to and from the ranks of a group, as bytes, whatever their dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Splits:
    """Rows to and from each rank of a hop's group."""

    send: tuple[int, ...]
    recv: tuple[int, ...]

    def reverse(self) -> Splits:
        """Of the way back."""
        return Splits(self.recv, self.send)


@dataclass(frozen=True)
class Hop:
    """A group that rows go through; alone in its group, a rank keeps its rows.

    Attributes:
        group: whose ranks are this hop's slots.
        slots: how many.
    """

    group: dist.ProcessGroup
    slots: int

    def counts(self, mine: torch.Tensor) -> torch.Tensor:
        """Row s of ``mine``, shape ``(slots, c)``, goes to slot s; the answer's rows are from each slot."""
        if self.slots == 1:
            return mine
        mine = mine.contiguous()
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine, group=self.group)
        return theirs

    def start(self, rows: torch.Tensor, splits: Splits) -> Callable[[], torch.Tensor]:
        """Begin to exchange rows of shape ``(sum(splits.send), w)``; what it returns waits for what arrives."""
        if self.slots == 1:
            return lambda: rows
        sent = rows.contiguous()
        arrived = sent.new_empty((sum(splits.recv), *sent.shape[1:]))
        # Bytes, since libraries do not know every dtype.
        work = dist.all_to_all_single(
            arrived.view(torch.uint8),
            sent.view(torch.uint8),
            list(splits.recv),
            list(splits.send),
            group=self.group,
            async_op=True,
        )

        # What is sent is held as well: the library reads it meanwhile.
        buffers = (sent, arrived)

        def finish() -> torch.Tensor:
            work.wait()
            return buffers[1]

        return finish

    def exchange(self, rows: torch.Tensor, splits: Splits) -> torch.Tensor:
        """``start``, and wait."""
        return self.start(rows, splits)()
