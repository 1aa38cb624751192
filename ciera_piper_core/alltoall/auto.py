"""``auto``: the algorithm that measurements promise to be fastest, chosen for each exchange, alike on all ranks."""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.calibration import calibrated
from ciera_piper_core.alltoall.counts import group_device
from ciera_piper_core.alltoall.crossovers import CHOICES, Choice, Crossovers, from_profile
from ciera_piper_core.alltoall.exchanger import Exchanger
from ciera_piper_core.alltoall.flat import FlatAllToAll
from ciera_piper_core.alltoall.halo import HaloAllToAll
from ciera_piper_core.alltoall.hierarchy import fallback_reason
from ciera_piper_core.alltoall.plan import Plan
from ciera_piper_core.alltoall.traffic_steps import skew
from ciera_piper_core.alltoall.two_phase import TwoPhaseAllToAll
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.alltoall.placement import Placement

MATRIX_RANKS = 512
"""Up to so many ranks, all splits are gathered everywhere (2 MiB), so that no algorithm has to exchange counts."""

REFRESH = 16
"""While flat serves uneven exchanges, their splits are gathered at every so many of them only: flat has no need of
counts, and what a router does changes slowly. Where neighbours pass rows on, they must be known each time."""

_calibrations: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[tuple[int, ...], ...], Crossovers]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class AutoPlan(Plan):
    """Splits, and what the choice needs of them.

    Attributes:
        mean_rows: over ranks, of what they send. skew: as ``traffic_steps.skew`` takes it.
        matrix: rows from each rank to each; None above ``MATRIX_RANKS``.
        inner: by algorithm, its plan for these splits, made when it is first wanted.
    """

    mean_rows: float = 0.0
    skew: float = 1.0
    matrix: Any = field(default=None, compare=False)
    inner: dict[str, Plan] = field(default_factory=dict, compare=False)

    def reverse(self) -> AutoPlan:
        """The plan of the answer."""
        return AutoPlan(
            self.recv_splits,
            self.send_splits,
            mean_rows=self.mean_rows,
            skew=self.skew,
            matrix=None if self.matrix is None else self.matrix.T,
            inner={name: plan.reverse() for name, plan in self.inner.items()},
        )


class AutoAllToAll(Exchanger):
    """Flat, or what is faster by measurements for the ranks, their placement, the bytes and the skew.

    The choice needs the splits of all ranks, which uneven exchanges therefore gather when they are
    planned; hierarchical algorithms then need no exchange of counts of their own. While the choice is
    flat, it goes by splits that were gathered up to ``REFRESH`` plans ago.

    Attributes:
        crossovers: what it goes by.
        fallback_reason: why only flat comes into question; None if others do.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        placement: Placement,
        *,
        check_splits: bool = False,
        profile: Crossovers | Path | str | None = None,
    ) -> None:
        """Make the algorithms, and take measurements where nobody else did (collective).

        Args:
            profile: the platform's, or its path; rank 0's counts. None, or one without measurements
                on a placement like this: the algorithms are measured here and now, which takes seconds,
                once for a group and placement.

        Raises:
            ValueError: a profile that cannot be read (on rank 0), or a placement of other ranks.
        """
        super().__init__(group, "auto", check_splits)
        if placement.world != self._world:
            raise ValueError(f"a placement of {placement.world} ranks for a group of {self._world}")
        self.placement = placement
        self.fallback_reason = fallback_reason(placement)
        self._algorithms: dict[str, Exchanger] = {"flat": FlatAllToAll(group)}
        self.crossovers = Crossovers(())
        # One algorithm is no choice; there the others would go flat as well.
        if self.fallback_reason is None:
            self._algorithms["two_phase"] = TwoPhaseAllToAll(group, placement)
            for name in CHOICES:
                if name.startswith("halo_"):
                    self._algorithms[name] = HaloAllToAll(group, placement, variant=name.removeprefix("halo_"))
            self.crossovers = self._agreed(profile)
        self._plans, self._needs_splits, self._load = 0, True, (0.0, 1.0)
        self._choose = functools.lru_cache(maxsize=4096)(self._chosen)

    def explain(self, bytes_per_rank: float, skewed: float = 1.0, *, equal: bool = True) -> Choice:
        """The choice for such an exchange, with its reason.

        Args:
            bytes_per_rank: mean over ranks of what they send. skewed: the most that any sends or receives over it.
            equal: shares are equal, and given as None.
        """
        return self._choose(bytes_per_rank, skewed, equal)

    def _chosen(self, bytes_per_rank: float, skewed: float, equal: bool) -> Choice:
        if self.fallback_reason is not None:
            return Choice("flat", {}, f"flat: {self.fallback_reason}")
        return self.crossovers.choose(len(self.placement.nodes), self._world, bytes_per_rank, skewed, equal=equal)

    def _agreed(self, profile: Crossovers | Path | str | None) -> Crossovers:
        """Rank 0's profile if it says something about this placement; else what is measured now."""
        nodes = len(self.placement.nodes)
        offered: list[Any] = [None]
        if self._rank == 0 and profile is not None:
            try:
                known = (
                    profile
                    if isinstance(profile, Crossovers)
                    else from_profile(Path(profile), group_device(self._group).type)
                )
                offered = [known if known.covers(nodes, self._world) else None]
            except ValueError as error:
                # The others wait for the answer; they raise it too.
                offered = [error]
        dist.broadcast_object_list(offered, group=self._group, group_src=0)
        if isinstance(offered[0], ValueError):
            raise offered[0]
        if isinstance(offered[0], Crossovers):
            return offered[0]
        mine = _calibrations.setdefault(self._group, {})
        if self.placement.nodes not in mine:
            mine[self.placement.nodes] = calibrated(self._group, self._algorithms, nodes)
        return mine[self.placement.nodes]

    def _make_plan(self, send_splits: tuple[int, ...], recv_splits: tuple[int, ...]) -> AutoPlan:
        if self.fallback_reason is not None:
            return AutoPlan(send_splits, recv_splits)
        # Ranks make the same plans in the same order, so they agree on when.
        gathers = self._needs_splits or self._plans % REFRESH == 0
        self._plans += 1
        matrix = None
        if gathers and self._world > MATRIX_RANKS:
            totals = self._gathered((sum(send_splits), sum(recv_splits)))
            mean = float(totals[:, 0].mean())
            self._load = mean, float(totals.max()) / mean if mean else 1.0
        elif gathers:
            matrix = self._gathered(send_splits)
            self._load = float(matrix.sum()) / self._world, skew(matrix)
        mean_rows, skewed = self._load
        return AutoPlan(send_splits, recv_splits, mean_rows=mean_rows, skew=skewed, matrix=matrix)

    @region("alltoall.counts")
    def _gathered(self, numbers: tuple[int, ...]) -> NDArray[Any]:
        """What each rank has, shape ``(ranks, len(numbers))``, int64 (collective)."""
        device = group_device(self._group)
        mine = torch.tensor(numbers, device=device)
        everyone = torch.empty((self._world, len(numbers)), dtype=torch.int64, device=device)
        if device.type == "cuda":
            dist.all_gather_single(everyone, mine[None], group=self._group)
            return everyone.cpu().numpy()
        # gloo gathers around a ring, one rank after the other; this takes two steps, as the exchanges do.
        groups = self._state.communicators(self.placement)
        nodes, per_node = len(self.placement.nodes), self.placement.ranks_per_node
        along_rail = torch.empty((nodes, len(numbers)), dtype=torch.int64)
        groups.exchange_along_rail(along_rail, mine.repeat(nodes, 1))
        by_local_index = torch.empty_like(everyone)
        groups.exchange_within_node(by_local_index, along_rail.repeat(per_node, 1))
        order = [node[local] for local in range(per_node) for node in self.placement.nodes]
        everyone[order] = by_local_index
        return everyone.numpy()

    def _move(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        row_bytes = send.shape[1] * send.itemsize
        if plan.send_splits is None:
            name = self._choose(float(send.shape[0] * row_bytes), 1.0, True).algorithm
            inner = plan
        else:
            if not isinstance(plan, AutoPlan):
                raise ValueError("this plan is of another algorithm; let auto plan its own")
            name = self._choose(plan.mean_rows * row_bytes, plan.skew, False).algorithm
            self._needs_splits = name != "flat"
            if name not in plan.inner:
                plan.inner[name] = self._inner_plan(name, plan)
            inner = plan.inner[name]
        with region(f"alltoall.{name}"):
            self._algorithms[name]._move(inner, send, out)

    def _inner_plan(self, name: str, plan: AutoPlan) -> Plan:
        assert plan.send_splits is not None
        assert plan.recv_splits is not None
        if name == "flat":
            return Plan(plan.send_splits, plan.recv_splits)
        if plan.matrix is None:
            return self._algorithms[name]._make_plan(plan.send_splits, plan.recv_splits)
        forth, back = (transit(name, matrix, self.placement, self._rank) for matrix in (plan.matrix, plan.matrix.T))
        return Plan(plan.send_splits, plan.recv_splits, forth, back)


def transit(name: str, matrix: NDArray[Any], placement: Placement, rank: int) -> tuple[tuple[int, ...], ...]:
    """What passes through ``rank``, as ``Plan.transit`` has it.

    Args:
        name: of a hierarchical algorithm.
        matrix: rows from each rank to each, shape ``(ranks, ranks)``.
    """
    node = list(placement.nodes[placement.node_of(rank)])
    rail = [ranks[placement.local_index(rank)] for ranks in placement.nodes]
    through = matrix[node][:, rail] if name == "two_phase" else matrix[rail][:, node]
    return tuple(tuple(row) for row in through.tolist())
