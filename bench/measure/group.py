"""The control plane of a group of ranks: barrier, gather and broadcast of small host data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch.distributed as dist
    from numpy.typing import NDArray

    from bench.measure.clock import ClockReading


class RankGroup:
    """Ranks that measure together.

    The control plane is always gloo on the CPU, apart from the ``data`` group whose collectives
    are measured (gloo on CPU, NCCL on CUDA). A group of one needs neither and never imports torch.

    Attributes:
        rank, world: of this process.
        control: process group of barriers and gathers; None in a world of one.
        data: process group for the workload's own traffic; None in a world of one.
        clocks: what was read of the hosts' clocks (``bench.measure.clock``); None before the first reading.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        control: dist.ProcessGroup | None = None,
        data: dist.ProcessGroup | None = None,
    ) -> None:
        if world > 1 and control is None:
            raise ValueError("a group of more than one rank needs a control process group")
        self.rank = rank
        self.world = world
        self.data = data
        self.control = control
        self.clocks: ClockReading | None = None

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier(group=self.control)

    def gather(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Every rank's array, stacked by rank: shape ``(world, *values.shape)``, float64, on all ranks.

        The array must have the same shape on every rank.
        """
        if self.world == 1:
            return values[np.newaxis].copy()
        import torch
        import torch.distributed as dist

        mine = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine, group=self.control)
        return np.stack([part.numpy() for part in everyone])

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's picklable object, by rank, on all ranks."""
        if self.world == 1:
            return [value]
        import torch.distributed as dist

        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, value, group=self.control)
        return everyone

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable object, on all ranks."""
        if self.world == 1:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def send(self, value: int, peer: int) -> None:
        """Send one 64-bit integer to ``peer``."""
        import torch
        import torch.distributed as dist

        dist.send(torch.tensor([value], dtype=torch.int64), dst=peer, group=self.control)

    def receive(self, peer: int) -> int:
        """Receive the 64-bit integer that ``peer`` sends."""
        import torch
        import torch.distributed as dist

        box = torch.empty(1, dtype=torch.int64)
        dist.recv(box, src=peer, group=self.control)
        return int(box.item())
