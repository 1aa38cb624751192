"""Compressed gathers of changing shards on this rank, with the library's gathers as their baseline.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from bench.definitions import Work
from bench.suite import Workload
from ciera_piper_core.allgather.calibration import calibrate
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.gain import GainModel
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan
from ciera_piper_core.allgather.selection import ChangeRates, select
from ciera_piper_core.exponents.backend import default_backend
from ciera_piper_core.exponents.layout import layout_of
from suites.changing_shards import ChangingShards
from suites.tensors import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context
    from ciera_piper_core.allgather.calibration import Calibration
    from ciera_piper_core.exponents.backend import Backend

POISON = 0xA5
"""Outputs hold it before the check's gathers."""

SETTLED_AFTER = 6
"""Gathers before the first one that is measured: the first is plain, and later ones learn how much room is needed."""

CALIBRATION_S = 3.0
CALIBRATIONS = "allgather_compressed/calibrations"
"""In ``Context.scratch``: by world, mode, type and size."""


class CompressedGathers(Workload):
    """One gather, or one a layer with the next one under way; shards change state before each run."""

    def __init__(self, case: Case, context: Context) -> None:
        site, group = context.site, context.group
        self._world, self._rank, self._data = group.world, group.rank, group.data
        layout = layout_of(torch_dtype(case["dtype"]))
        values = int(case["bytes"]) // layout.value_bytes
        layers = range(case["layers"])
        self._shards = ChangingShards(
            values, layout, float(case["change_rate"]), case["spread"] == "clustered", site.seed
        )
        self._state = self._plain_state = 0
        # The baseline turns between states of its own: it would find those that ``run`` has just read in the cache.
        self._mine, self._plain_mine = (
            [
                [self._shards.of(self._rank, layer, state).view(layout.dtype).to(site.device) for layer in layers]
                for state in (0, 1)
            ]
            for _ in range(2)
        )
        context.alive()
        self._outs, self._plain_outs = (
            [torch.empty(values * self._world, dtype=layout.dtype, device=site.device) for _ in layers]
            for _ in range(2)
        )
        backend = default_backend(site.device, threads=site.cores)
        plan = GatherPlan.single(values, layout.dtype, CodingSettings(mode=case["mode"]))
        plan = _selected(plan, case, context, backend)
        self._lane = GatherLane(self._data, device=site.device)
        self._gathers = [CompressedGather(plan, backend=backend, lane=self._lane) for _ in layers]
        self.work = Work(bytes=self._outs[0].nbytes * len(layers))
        for _ in range(SETTLED_AFTER):
            self.run()
            context.alive()
        self._counted = self._counts()
        self._byte_ratios: list[float] = []

    def prepare(self) -> None:
        """Note what the last run sent."""
        sent, plain = (now - before for now, before in zip(self._counts(), self._counted, strict=True))
        if plain:
            self._byte_ratios.append(sent / plain)
            self._counted = self._counts()

    def run(self) -> None:
        self._state ^= 1
        shards = self._mine[self._state]
        if len(shards) == 1:
            self._gathers[0].gather(shards[0], self._outs[0])
            return
        pairs = zip(self._gathers, shards, self._outs, strict=True)
        awaited = None
        for gather, shard, out in pairs:
            begun = gather.start(shard, out)
            if awaited is not None:
                awaited.wait()
            awaited = begun
        assert awaited is not None
        awaited.wait()

    def baseline(self) -> None:
        self._plain_state ^= 1
        shards = self._plain_mine[self._plain_state]
        if len(shards) == 1:
            dist.all_gather_single(self._plain_outs[0], shards[0], group=self._data)
            return
        awaited = None
        for shard, out in zip(shards, self._plain_outs, strict=True):
            begun = dist.all_gather_single(out, shard, group=self._data, async_op=True)
            if awaited is not None:
                awaited.wait()
            awaited = begun
        assert awaited is not None
        awaited.wait()

    def check(self) -> int:
        """Values of any rank that are not its own, bit for bit: of the last run, then of both states, from poison."""
        wrong = self._wrong(self._outs, self._state)
        for _ in range(2):
            for out in (*self._outs, *self._plain_outs):
                out.view(torch.uint8).fill_(POISON)
            self.run()
            self.baseline()
            wrong += self._wrong(self._outs, self._state) + self._wrong(self._plain_outs, self._plain_state)
        return wrong

    def observations(self) -> Mapping[str, Sequence[float]]:
        self.prepare()
        return {"byte_ratio": self._byte_ratios}

    def close(self) -> None:
        for gather in self._gathers:
            gather.close()
        self._lane.close()

    def _wrong(self, outs: Sequence[torch.Tensor], state: int) -> int:
        wrong = 0
        for layer, out in enumerate(outs):
            for rank, part in enumerate(out.view(self._world, -1)):
                expected = self._shards.of(rank, layer, state)
                wrong += int((part.cpu().view(expected.dtype) != expected).sum())
        return wrong

    def _counts(self) -> tuple[int, int]:
        """Bytes that this rank sent so far, and those of plain gathers."""
        statistics = [gather.statistics for gather in self._gathers]
        return sum(each.sent_bytes for each in statistics), sum(each.plain_bytes for each in statistics)


def _selected(plan: GatherPlan, case: Case, context: Context, backend: Backend) -> GatherPlan:
    """The plan, with what the case's selection takes (collective)."""
    if case["selection"] == "all":
        return plan
    if case["selection"] == "none":
        return plan.with_selection(())
    calibration = _calibration(plan, case, context, backend)
    model = GainModel(calibration.comm, calibration.kernels)
    (chosen,), _ = select([plan], ChangeRates(float(case["change_rate"])), model, group=context.group.data)
    return chosen


def _calibration(plan: GatherPlan, case: Case, context: Context, backend: Backend) -> Calibration:
    """Measured once for a size, a mode and a type, whatever the rate (collective)."""
    known: dict[Any, Calibration] = context.scratch.setdefault(CALIBRATIONS, {})
    key = context.group.world, case["mode"], case["dtype"], case["bytes"]
    # Ranks must agree whether to measure: one that was started again has forgotten.
    if not all(context.group.gather_objects(key in known)):
        known[key] = calibrate(
            [plan.shard_bytes],
            plan.layout,
            backend,
            context.group.data,
            plan.settings,
            nodes=context.site.nodes,
            device=context.site.device,
            budget_s=CALIBRATION_S,
        )
    context.alive()
    return known[key]
