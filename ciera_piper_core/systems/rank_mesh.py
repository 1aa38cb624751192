"""Ranks in a grid of named axes, and the groups along any of them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ciera_piper_core.alltoall.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ciera_piper_core.systems.system import Ranks

_NUMBERS = count()
"""Of the meshes of ``device_mesh``."""


class RankMesh:
    """Ranks by coordinates. The last axis changes fastest: its neighbours are neighbours in rank.

    Attributes:
        sizes: of the axes, by name, slowest first.
        rank: this rank, in ``ranks.group``.

    Raises:
        ValueError: sizes that do not multiply to the number of ranks.
    """

    def __init__(self, ranks: Ranks, sizes: Mapping[str, int]) -> None:
        """Groups are made when first asked for (collective over *all* ranks, in the same order)."""
        product = 1
        for size in sizes.values():
            product *= size
        if min(sizes.values(), default=1) < 1 or product != ranks.world:
            axes = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ValueError(f"{axes} make {product} ranks, not {ranks.world}")
        self.sizes = dict(sizes)
        self._ranks = ranks
        self.rank = dist.get_rank(ranks.group)
        self._groups: dict[tuple[str, ...], dist.ProcessGroup] = {}

    def coordinate(self, axis: str, rank: int | None = None) -> int:
        """Where a rank (None: this one) is on that axis."""
        place = self.rank if rank is None else rank
        for name in reversed(self.sizes):
            place, here = divmod(place, self.sizes[name])
            if name == axis:
                return here
        raise ValueError(f"the mesh has no axis {axis!r}; it has: {', '.join(self.sizes)}")

    def index(self, *axes: str) -> int:
        """This rank's number in ``group(*axes)``."""
        return self.members(*axes).index(self.rank)

    def members(self, *axes: str, rank: int | None = None) -> tuple[int, ...]:
        """Ranks that differ from a rank (None: this one) on these axes at most, in order of rank."""
        fixed = [name for name in self.sizes if name not in axes]
        mine = [self.coordinate(name, rank) for name in fixed]
        return tuple(
            other for other in range(self._ranks.world) if [self.coordinate(name, other) for name in fixed] == mine
        )

    def size(self, *axes: str) -> int:
        """Number of ranks of ``group(*axes)``."""
        return len(self.members(*axes))

    def group(self, *axes: str) -> dist.ProcessGroup:
        """The group of ``members(*axes)``; the first call for these axes is collective over all ranks.

        It is another one than ``ranks.group`` even if it has the same ranks, and another one for other axes: so
        sums of gradients and exchanges of tokens that overlap do not get into each other's order.
        """
        key = tuple(name for name in self.sizes if name in axes)
        if key not in self._groups:
            self._groups[key] = self._make(key)
        return self._groups[key]

    def placement(self, *axes: str) -> Placement:
        """Where the ranks of ``group(*axes)`` are."""
        whole, members = self._ranks.placement, self.members(*axes)
        nodes = [tuple(members.index(rank) for rank in node if rank in members) for node in whole.nodes]
        nics = None if whole.nic_of_rank is None else tuple(whole.nic_of_rank[rank] for rank in members)
        return Placement(tuple(node for node in nodes if node), nics, whole.source)

    def close(self) -> None:
        """Release the groups (collective)."""
        while self._groups:
            dist.destroy_process_group(self._groups.popitem()[1])

    def _make(self, axes: tuple[str, ...]) -> dist.ProcessGroup:
        everyone = dist.get_process_group_ranks(self._ranks.group)
        mine = None
        # All ranks make all groups of these axes in the same order, as torch wants it.
        for members in sorted({self.members(*axes, rank=rank) for rank in range(self._ranks.world)}):
            made = dist.new_group([everyone[member] for member in members], backend=dist.get_backend(self._ranks.group))
            if self.rank in members:
                mine = made
        assert isinstance(mine, dist.ProcessGroup)
        return mine


def device_mesh(group: dist.ProcessGroup, device: torch.device, axis: str) -> DeviceMesh:
    """A group as torch's mesh of one axis, named anew each time.

    Meshes of the same ranks with axes of the same names are one to torch, whatever their groups: it keeps them with
    what it knows of operations, and would go on to send in the group of a system that is closed, or of another one.
    """
    return DeviceMesh.from_group(group, device.type, mesh_dim_names=(f"{axis}_{next(_NUMBERS)}",))
