"""One lane for all gathers of the same ranks in a process, whichever models they belong to.

A lane is a process group with its connections, two threads and buffers; a model of many layers needs
one, and so do several models that are trained by turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.allgather.errors import GatherError
from ciera_piper_core.allgather.lane import GatherLane

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    from torch.distributed import ProcessGroup

_lanes: list[tuple[ProcessGroup, str, timedelta | None, GatherLane]] = []
"""Those of this process, with what they were made for. They end with ``destroy_process_group``."""


def lane_of(ranks: ProcessGroup, device: torch.device, timeout: timedelta | None) -> GatherLane:
    """The lane of these ranks: the one that there is, or a new one (collective).

    One that broke in a failed collective is not used again; it broke on all ranks.
    """
    # By identity: a group that was destroyed may have had the same name and ranks.
    for known, kind, patience, lane in _lanes:
        if known is ranks and (kind, patience) == (device.type, timeout) and _works(lane):
            return lane
    lane = GatherLane(ranks, device=device, timeout=timeout)
    _lanes.append((ranks, device.type, timeout, lane))
    return lane


def _works(lane: GatherLane) -> bool:
    try:
        lane.verify()
    except GatherError:
        return False
    return True
