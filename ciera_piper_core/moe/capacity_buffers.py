"""Expert parallelism through buffers of one size for each expert, in parts that travel while others are computed.

After Tutel: every rank sends each expert the same number of rows, its capacity, filled up with
zeros, so that no counts travel and all messages are of one size; experts compute the filling too.
The buffers are cut into as many parts as the *degree* says, and the exchange of one goes on beside
the computation of another. Which degree is fastest is found out in the first steps.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.moe.activation import activate
from ciera_piper_core.moe.exchange_queue import Exchange, ExchangeQueue
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.moe.router import is_recomputing
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.alltoall import AllToAll
    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.moe.expert_table import ExpertTable
    from ciera_piper_core.moe.router import Routes

DEGREES = (1, 2, 4)
"""That are tried."""

TRIALS = 3
"""Forward passes with each degree; the fastest counts, so that the first may warm up."""


class DegreeChoice:
    """The degree of overlap: each one tried in turn, then the fastest for good; the same on all ranks.

    Attributes:
        chosen: None while degrees are tried.
        seconds: of the fastest pass with each degree, once chosen: that of the slowest rank.
    """

    def __init__(self, group: dist.ProcessGroup, degrees: Sequence[int] = DEGREES, trials: int = TRIALS) -> None:
        """
        Args:
            degrees: to try; a single one is taken as it is.
        """
        self._group, self._degrees, self._trials = group, tuple(degrees), trials
        self._times: list[float] = []
        self.chosen: int | None = self._degrees[0] if len(self._degrees) == 1 else None
        self.seconds: dict[int, float] = {}

    def next(self) -> int:
        """For the coming pass."""
        if self.chosen is not None:
            return self.chosen
        return self._degrees[len(self._times) % len(self._degrees)]

    def took(self, seconds: float) -> None:
        """The pass with ``next()`` took so long (collective when the last is told)."""
        if self.chosen is not None:
            return
        self._times.append(seconds)
        if len(self._times) == self._trials * len(self._degrees):
            best = [min(self._times[place :: len(self._degrees)]) for place in range(len(self._degrees))]
            slowest = torch.tensor(best, dtype=torch.float64)
            if "nccl" in dist.get_backend(self._group):
                slowest = slowest.cuda()
            dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self._group)
            self.seconds = dict(zip(self._degrees, slowest.tolist(), strict=True))
            self.chosen = min(self.seconds, key=lambda degree: self.seconds[degree])


class CapacityBuffers(ExpertParallel):
    """See the module; ``ExpertParallel`` with another way of through_experts.

    Attributes:
        degree: the choice of overlap.
        capacity: rows that each rank sent each expert in the last pass; 0 before the first.
        dropped: choices of this rank that found no room in the last pass.
    """

    def __init__(
        self,
        plain: RoutedExperts,
        group: dist.ProcessGroup,
        algorithm: AllToAll,
        table: ExpertTable | None = None,
        *,
        capacity_factor: float = 0.0,
        degrees: Sequence[int] = DEGREES,
    ) -> None:
        """
        Args:
            algorithm: of the exchanges, bound to ``group``.
            capacity_factor: an expert has room for ``ceil(factor * tokens * k / experts)`` of a rank's
                tokens: all first choices in the order of tokens, then second ones, and so on.
                0: for the most that any rank sends any expert; nothing is dropped.

        Raises:
            ValueError: see ``ExpertParallel``; a negative factor.
        """
        if not capacity_factor >= 0:
            raise ValueError(f"a capacity factor is 0 (room for all) or more, not {capacity_factor}")
        super().__init__(plain, group, None, table)
        self.capacity_factor = capacity_factor
        self.queue = ExchangeQueue(algorithm)
        self.degree = DegreeChoice(group, degrees)
        self.capacity = self.dropped = 0
        self._cut = 1

    def through_experts(self, tokens: torch.Tensor, routes: Routes) -> torch.Tensor:
        """As ``ExpertParallel.through_experts``."""
        # Computed anew by the backward pass, it must be cut into the same parts.
        again = is_recomputing()
        degree = self._cut = self._cut if again else self.degree.next()
        started = self._now(tokens)
        with region("moe.dispatch"):
            places, choices = self._rooms(routes.experts, degree)
            sources = choices // routes.experts.shape[1]
            rooms = self.table.ranks * self._slots * self.capacity
            buffer = tokens.new_zeros(rooms, tokens.shape[1]).index_copy(0, places, tokens.index_select(0, sources))
            # Part, rank, slot, room: each part is an exchange of equal shares.
            parts = buffer.view(degree, -1, tokens.shape[1]).unbind(0)
            ways = [(Exchange(self.queue, "moe.dispatch"), Exchange(self.queue, "moe.combine")) for _ in parts]
            begun = [out.start(part) for (out, _), part in zip(ways, parts, strict=True)]
        back = []
        for (out, home), part in zip(ways, begun, strict=True):
            with region("moe.dispatch"):
                arrived = out.finish(part)
            with region("moe.experts"):
                outputs = self._compute(arrived)
            with region("moe.combine"):
                back.append(home.start(outputs))
        with region("moe.combine"):
            rows = torch.cat([home.finish(part) for (_, home), part in zip(ways, back, strict=True)])
            weights = routes.weights.flatten().index_select(0, choices)
            precise = torch.promote_types(rows.dtype, weights.dtype)
            weighted = rows.index_select(0, places).to(precise) * weights[:, None]
            combined = weighted.new_zeros(tokens.shape).index_add(0, sources, weighted).to(tokens.dtype)
        if torch.is_grad_enabled() and not again:
            self.degree.took(self._now(tokens) - started)
        return combined

    @property
    def _slots(self) -> int:
        return max(len(held) for held in self.table.held)

    def _rooms(self, experts: torch.Tensor, degree: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the buffer that are filled, and with which choices (by token and number)."""
        count, top_k = experts.shape
        total = self.table.experts
        flat = experts.T.flatten()
        kept = (flat >= 0).nonzero().flatten()
        by_expert, order = flat[kept].sort(stable=True)
        per_expert = torch.bincount(by_expert, minlength=total)
        first = per_expert.cumsum(0) - per_expert
        room = torch.arange(len(by_expert), device=experts.device) - first[by_expert]
        self.capacity = self._room_for(per_expert, count * top_k, degree)
        fits = room < self.capacity
        self.dropped = int((~fits).sum())
        by_expert, room, turned = by_expert[fits], room[fits], kept[order][fits]
        ranks = self.table.ranks_tensor(experts.device)[by_expert]
        slots = self.table.slots_tensor(experts.device)[by_expert]
        each = self.capacity // degree
        part, within = room // each, room % each
        places = ((part * self.table.ranks + ranks) * self._slots + slots) * each + within
        # Turned: the number of the choice, then the token.
        return places, turned % max(count, 1) * top_k + turned // max(count, 1)

    def _room_for(self, per_expert: torch.Tensor, choices: int, degree: int) -> int:
        """The capacity, the same on all ranks (collective): a multiple of the degree, 1 or more."""
        if self.capacity_factor:
            largest = torch.tensor(math.ceil(self.capacity_factor * choices / self.table.experts))
        else:
            largest = per_expert.max()
        largest = largest.to(per_expert.device, torch.int64).reshape(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return math.ceil(max(int(largest), 1) / degree) * degree

    def _compute(self, arrived: torch.Tensor) -> torch.Tensor:
        """Outputs for ``(ranks * slots * room, hidden)``, in the same order."""
        ranks, slots, hidden = self.table.ranks, self._slots, arrived.shape[1]
        held = len(self.local_experts)
        rows = arrived.view(ranks, slots, -1, hidden)[:, :held].transpose(0, 1).reshape(held, -1, hidden)
        experts = self.experts
        up = torch.bmm(rows, experts.up.mT)
        gate = None if experts.gate is None else torch.bmm(rows, experts.gate.mT)
        outputs = torch.bmm(activate(up, gate), experts.down.mT)
        outputs = outputs.view(held, ranks, -1, hidden).transpose(0, 1)
        if held < slots:
            # Ranks with fewer experts send zeros for those that they do not have.
            outputs = torch.nn.functional.pad(outputs, (0, 0, 0, 0, 0, slots - held))
        return outputs.reshape(-1, hidden)

    def _now(self, tensor: torch.Tensor) -> float:
        if self.degree.chosen is None and tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        return time.perf_counter()
