"""The compressed Allgather inside of FSDP2: one call makes every parameter group of a sharded model gather through it.

In a training script, after ``fully_shard``::

    from ciera_piper_core.allgather.fsdp import compress_all_gathers

    compressed = compress_all_gathers(model)

Losses and parameters stay the same bit for bit. A step in which a gather failed on all ranks is
tried again after :func:`abandon_iteration`. What FSDP2 must bring along is checked when the
function is called; :data:`~ciera_piper_core.allgather.fsdp_groups.KNOWN_TORCH` has the versions that
are known to work.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.allgather.calibration import calibrate
from ciera_piper_core.allgather.change_trace import ChangeTrace, TraceRecorder, trace_of
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.fsdp_groups import (
    CODABLE,
    UnsupportedTorchError,
    abandon_iteration,
    current_all_gather,
    forget_gather,
    is_sharded,
    parameter_groups,
    parameter_modules,
    set_all_gather,
    waits_at_once,
    with_current_dtypes,
)
from ciera_piper_core.allgather.fsdp_lanes import lane_of
from ciera_piper_core.allgather.gain import GainModel
from ciera_piper_core.allgather.plan import CodingSettings
from ciera_piper_core.allgather.selection import select
from ciera_piper_core.allgather.statistics import category_totals
from ciera_piper_core.exponents.backend import default_backend

try:
    from torch.distributed.distributed_c10d import Work
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
except ImportError as error:
    raise UnsupportedTorchError(f"{error.name}") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ciera_piper_core.allgather.fsdp_groups import ParameterGroup
    from ciera_piper_core.allgather.gain import Selection
    from ciera_piper_core.allgather.lane import GatherLane
    from ciera_piper_core.allgather.plan import GatherPlan, Segment
    from ciera_piper_core.allgather.selection import ChangeRates
    from ciera_piper_core.allgather.statistics import GatherSample, GatherStatistics, SegmentTotals
    from ciera_piper_core.allgather.work import GatherWork
    from ciera_piper_core.exponents.backend import Backend


__all__ = ["CompressedModel", "abandon_iteration", "compress_all_gathers"]


def compress_all_gathers(
    model: torch.nn.Module,
    settings: CodingSettings | None = None,
    *,
    backend: Backend | None = None,
    only: Callable[[Segment], bool] | None = None,
    category: Callable[[str, tuple[int, ...]], str | None] | None = None,
    timeout: timedelta | None = None,
    staged: bool | None = None,
) -> CompressedModel:
    """Have every FSDP2 module under ``model`` gather its parameters compressed.

    All ranks call it, after the last ``fully_shard``, with the same arguments. It may be called for
    parts of a model one by one, with other settings for each: groups that are compressed already are
    left as they are.

    Args:
        model: with ``fully_shard`` applied to it or to parts of it.
        settings: how exponents are coded; None for mode ``auto`` and blocks of 512 values.
        backend: of the kernels and the coder; None for the best that there is.
        only: whether to compress a parameter; None for all whose shard is at least a block long.
            It must decide the same on all ranks. :meth:`CompressedModel.keep_worthwhile` decides later,
            by measuring.
        category: of a parameter, by name and shape, where the usual choice by name is wrong; None from
            it leaves the choice.
        timeout: how long a collective may take before ranks get an error; None for that of the model's
            process group.
        staged: whether gathers go in stages; None: where it pays (:class:`CompressedGather` has more).

    Returns:
        what reads statistics, changes the selection, and takes compression away again.

    Raises:
        UnsupportedTorchError: this torch's FSDP2 is not one that is known.
        ValueError: no module under ``model`` is sharded by FSDP2.
    """
    settings = settings if settings is not None else CodingSettings("auto")
    if not is_sharded(model):
        raise ValueError("no module of the model is sharded: call torch.distributed.fsdp.fully_shard first")
    return CompressedModel(
        [
            _GroupGather(
                group,
                group.plan(settings, category, only),
                lane_of(group.ranks, group.device, timeout),
                backend,
                staged,
            )
            for group in parameter_groups(model)
            if not group.packs_itself and not isinstance(current_all_gather(group), _GroupGather)
        ]
    )


class CompressedModel:
    """The compressed gathers of a model: one for each parameter group, by name."""

    def __init__(self, gathers: Sequence[_GroupGather]) -> None:
        self._gathers = {gather.group.name: gather for gather in gathers}

    @property
    def plans(self) -> dict[str, GatherPlan]:
        """By group: its parameters, and which of them are compressed."""
        return {name: gather.plan for name, gather in self._gathers.items()}

    @property
    def statistics(self) -> dict[str, GatherStatistics]:
        """By group: what was gathered since its plan last changed."""
        return {name: gather.statistics for name, gather in self._gathers.items()}

    @property
    def categories(self) -> dict[str, SegmentTotals]:
        """By category: sums over the coded gathers of its parameters."""
        return category_totals(one for statistics in self.statistics.values() for one in statistics.segments.values())

    @property
    def state_bytes(self) -> int:
        """Memory that hashes and cached exponents take on this rank."""
        return sum(gather.state_bytes for gather in self._gathers.values())

    def apply(self, plans: Iterable[GatherPlan]) -> None:
        """Gather by these plans from the next gather on (collective: all ranks, the same plans).

        Args:
            plans: as :attr:`plans` has them, with other segments selected (``with_selection``) or other
                settings; groups without one keep theirs.

        Raises:
            ValueError: a plan of an unknown group, or one that does not fit its group.
        """
        changed = {}
        for plan in plans:
            if plan.name not in self._gathers:
                raise ValueError(f"no group is named {plan.name!r}; there are {', '.join(self._gathers)}")
            if _sizes(plan) != _sizes(self._gathers[plan.name].plan):
                raise ValueError(f"the plan {plan.name!r} has other segments than the group's parameters")
            changed[plan.name] = plan
        for name, plan in changed.items():
            self._gathers[name].replan(plan)

    def record(self) -> None:
        """Begin a trace of what the gathers carry: of all parameters that are compressed now."""
        for gather in self._gathers.values():
            gather.recorder = TraceRecorder(gather.plan) if gather.plan.selected else None

    def trace(self, source: str) -> ChangeTrace:
        """End the trace that :meth:`record` began (collective).

        Args:
            source: where it is from, for people.

        Raises:
            ValueError: nothing was recorded, or of gathers among more ranks and of others among fewer.
        """
        traces = self._traces(source)
        worlds = sorted({each.world for each in traces})
        if len(worlds) > 1:
            raise ValueError(
                f"some parameters are gathered from {worlds[0]} ranks and others from {worlds[-1]}, and a trace is of "
                "one number; compress and trace the parts of the model one by one"
            )
        return ChangeTrace(worlds[0], source, tuple(gather for each in traces for gather in each.gathers))

    def _traces(self, source: str) -> list[ChangeTrace]:
        """A trace for each set of ranks, whatever else the job has (collective)."""
        if not self._gathers:
            raise ValueError("nothing is gathered from other ranks (a world of one?), so there is nothing to trace")
        sets: dict[int, list[_GroupGather]] = {}
        for gather in self._gathers.values():
            if gather.recorder is not None:
                sets.setdefault(id(gather.group.ranks), []).append(gather)
        recorded = [
            ([each.recorder for each in gathers if each.recorder], gathers[0].group.ranks) for gathers in sets.values()
        ]
        for gather in self._gathers.values():
            gather.recorder = None
        if not recorded:
            raise ValueError("nothing was recorded; call record() before the steps that the trace shall cover")
        return [trace_of(recorders, ranks, source) for recorders, ranks in recorded]

    def keep_worthwhile(
        self,
        rates: ChangeTrace | ChangeRates | None = None,
        *,
        model: GainModel | None = None,
        budget_bytes: int | None = None,
    ) -> tuple[Selection, ...]:
        """From the next gather on, compress only what makes gathers faster (collective; with no gather in flight).

        Args:
            rates: how much changes from gather to gather; None for the trace that :meth:`record` began.
            model: of the gain, from a platform profile; None measures gathers and kernels here and now, for
                some seconds.
            budget_bytes: most cache bytes of a rank; None for no limit.

        Returns:
            what was decided and why: one selection for each set of ranks and type of values; none where
            nothing is gathered from other ranks.

        Raises:
            ValueError: neither rates nor a recorded trace.
        """
        if not self._gathers:
            return ()
        if rates is None:
            traces = self._traces("recorded in training")
            rates = replace(traces[0], gathers=tuple(gather for each in traces for gather in each.gathers))
        sets: dict[tuple[int, torch.dtype], list[_GroupGather]] = {}
        for gather in self._gathers.values():
            if gather.plan.dtype in CODABLE:
                sets.setdefault((id(gather.lane), gather.plan.dtype), []).append(gather)
        selections = []
        for gathers in sets.values():
            plans = [gather.plan for gather in gathers]
            ranks = gathers[0].group.ranks
            chosen, selection = select(plans, rates, model or _measured(gathers), budget_bytes, ranks)
            self.apply(chosen)
            selections.append(selection)
            if budget_bytes is not None:
                budget_bytes -= selection.cache_bytes
        return tuple(selections)

    def reset(self) -> None:
        """Forget what was sent: the next gather of each group is a full one. Loading a state does this by itself."""
        for gather in self._gathers.values():
            gather.reset()

    def remove(self) -> None:
        """Back to the gathers that the modules had (with no gather in flight)."""
        for gather in self._gathers.values():
            gather.remove()
        self._gathers = {}


class _GroupGather(AllGather):
    """The ``AllGather`` of one parameter group: compressed when it is asked for what the plan describes, else plain.

    Plain are gathers over other ranks: ``reshard_after_forward`` to a smaller mesh gathers over fewer of
    them in the backward pass.
    """

    def __init__(
        self,
        group: ParameterGroup,
        plan: GatherPlan,
        lane: GatherLane,
        backend: Backend | None,
        staged: bool | None = None,
    ) -> None:
        self.group = group
        self.recorder: TraceRecorder | None = None
        self.lane = lane
        self.backend = backend
        self.staged = staged
        self._gather = self._built(plan)
        self._previous = set_all_gather(group, self)
        myself = weakref.ref(self)

        def forget(*_: Any) -> None:
            if (gather := myself()) is not None:
                gather.reset()

        self._hooks = [
            module.register_load_state_dict_post_hook(forget)  # type: ignore[no-untyped-call]
            for module in parameter_modules(group)
        ]

    @property
    def plan(self) -> GatherPlan:
        return self._gather.plan

    @property
    def statistics(self) -> GatherStatistics:
        return self._gather.statistics

    @property
    def state_bytes(self) -> int:
        return self._gather.state_bytes

    def replan(self, plan: GatherPlan) -> None:
        if plan != self.plan:
            self.recorder = None
            self._gather = self._built(plan)

    def reset(self) -> None:
        self._gather.reset()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        set_all_gather(self.group, self._previous)

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        # Threads that are in no inference mode, like the lane's, may not write to tensors made in one.
        with torch.inference_mode(False):
            return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Work | None:
        if group is not self.group.ranks or not self._is_planned(input_tensor) or not self.plan.selected:
            # Exactly what FSDP2 does by itself.
            began_ns = time.perf_counter_ns()
            plain: Work | None = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
            self.statistics.add_plain(input_tensor.nbytes, time.perf_counter_ns() - began_ns)
            return plain
        shard, out = input_tensor.view(self.plan.dtype), output_tensor.view(self.plan.dtype)
        with torch.inference_mode(False):
            if waits_at_once(self.group):
                # Nothing can be done meanwhile, and this thread does it without hand-overs.
                self._gather.gather(shard, out)
                return None
            # Also where a synchronous gather is asked for: FSDP2 waits for any work that it is given, and
            # not before it needs the parameters, so prefetched gathers run beside computing on CPUs too.
            return _GroupWork(self._gather.start(shard, out), self.group)

    def _built(self, plan: GatherPlan) -> CompressedGather:
        gather = CompressedGather(plan, lane=self.lane, backend=self.backend, staged=self.staged)
        myself = weakref.ref(self)

        def record(sample: GatherSample) -> None:
            if (group := myself()) is not None and group.recorder is not None:
                group.recorder.add(sample)

        gather.on_sample = record
        return gather

    def _is_planned(self, shard: torch.Tensor) -> bool:
        """Whether the plan describes the shard; after a change of the parameters' types it is made to."""
        if shard.dtype is not self.group.gathered_dtype:
            self.group = with_current_dtypes(self.group)
            selected = {segment.name for segment in self.plan.selected}
            category = {segment.name: segment.category for segment in self.plan.segments}
            self.replan(
                self.group.plan(self.plan.settings, lambda name, _: category[name], lambda one: one.name in selected)
            )
        return shard.dtype is self.group.gathered_dtype and shard.nbytes == self.plan.shard_bytes


class _GroupWork(Work):
    """A started gather as FSDP2 waits for it: in ``wait_for_unshard``, and when it abandons an iteration."""

    def __init__(self, work: GatherWork, group: ParameterGroup) -> None:
        super().__init__()
        self._work = work
        self._group = group

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        try:
            with torch.inference_mode(False):
                self._work.wait()
        except BaseException:
            forget_gather(self._group)
            raise
        return True


def _sizes(plan: GatherPlan) -> list[tuple[str, int]]:
    return [(segment.name, segment.values) for segment in plan.segments]


def _measured(gathers: Sequence[_GroupGather]) -> GainModel:
    """A model of the gain for these gathers, measured on their ranks."""
    plans = [gather.plan for gather in gathers]
    lane, layout = gathers[0].lane, plans[0].layout
    calibration = calibrate(
        {size for plan in plans for size in (plan.shard_bytes, *map(plan.segment_bytes, plan.segments))},
        layout,
        gathers[0].backend or default_backend(lane.device),
        gathers[0].group.ranks,
        plans[0].settings,
        device=lane.device,
    )
    return GainModel(calibration.comm, calibration.kernels)
