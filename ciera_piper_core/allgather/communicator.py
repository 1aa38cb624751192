"""The compressed Allgather: every rank's shard to every rank, of which only exponents that changed travel."""

from __future__ import annotations

import warnings
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.utils.dlpack import from_dlpack

from ciera_piper_core.allgather.agreement import agree
from ciera_piper_core.allgather.carrying import StagePart, complete_parts, run_part_here, start_parts
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plain_gather import PlainGather
from ciera_piper_core.allgather.stage import Stage
from ciera_piper_core.allgather.staging import pays, stages_of
from ciera_piper_core.allgather.statistics import GatherSample, GatherStatistics
from ciera_piper_core.allgather.work import GatherWork
from ciera_piper_core.exponents.backend import default_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from datetime import timedelta

    from ciera_piper_core.allgather.plan import GatherPlan
    from ciera_piper_core.exponents.backend import Backend


LIBRARY_DTYPES = frozenset(
    {torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64}
)
"""Types that every backend of the library gathers as they are; others go as bytes."""


class CompressedGather:
    """Gathers one plan's shards, again and again.

    The first gather is a plain one, from which senders and receivers remember the exponents; from
    then on one collective carries signs, mantissas and what changed. Whatever goes wrong on a rank
    makes the next gather a plain one on all (``refresh``): nothing is ever decoded against another
    base than it was coded against, and what was rebuilt is verified by a checksum of the values.

    Large shards go in a few stages, each with a collective of its own: while one is on the wire, the
    next is coded and the last one decoded.

    One gather of a plan can be in flight, since the next one is coded against what it commits;
    gathers of different plans on one lane overlap.
    """

    def __init__(
        self,
        plan: GatherPlan,
        group: dist.ProcessGroup | None = None,
        backend: Backend | None = None,
        *,
        lane: GatherLane | None = None,
        device: torch.device | str = "cpu",
        timeout: timedelta | None = None,
        staged: bool | None = None,
    ) -> None:
        """Collective over the group: ranks exchange their plans.

        Args:
            plan: of this rank's shard.
            group: whose ranks gather; None for all. A clone of it is made, unless ``lane`` has one or nothing
                is coded.
            backend: of kernels and coder; None for the fastest that runs on the device.
            lane: shared with other gathers of the same ranks; None for one of its own.
            device: where shards are; the lane's if there is one.
            timeout: of a collective, for a lane of its own.
            staged: whether to go in stages, the same on all ranks; None: where it pays (``staging.py``), from
                4 MiB on. Uneven shards never do.

        Raises:
            GatherMismatchError: ranks' plans do not fit together; on every rank.
        """
        self._owns_lane = lane is None
        # Nothing to code: the program's own group, on the program's own thread, as it would be without us.
        clone = bool(plan.selected) or timeout is not None
        if lane is None:
            lane = GatherLane(group, device=device, timeout=timeout, clone=_any_rank(clone, group))
        self.lane = lane
        self.plan = plan
        self.backend = backend or (default_backend(self.lane.device) if plan.selected else None)
        self._statistics = GatherStatistics(plan)
        self._bare_gathers = 0
        self.on_sample: Callable[[GatherSample], None] | None = None
        """Called after each gather that completed, with what it did."""
        self._agreement = agreement = agree(plan, self.lane, self.backend)
        self._in_flight: GatherWork | None = None
        self._stages: list[Stage] = []
        # A world of one has nobody to send to.
        if self.backend is not None and plan.selected and self.lane.world > 1:
            stages = stages_of(agreement, self.backend, pays(agreement, self.lane) if staged is None else staged)
            begins = accumulate((stage.plans[self.lane.rank].values for stage in stages), initial=0)
            with torch.inference_mode(False):
                self._stages = [
                    Stage(stage, begin, self.lane, self.backend) for stage, begin in zip(stages, begins, strict=False)
                ]
        self._plain = PlainGather(agreement, self.lane, self._count_plain, self._count_failure)
        bare = self._plain.is_bare and not self._stages and plan.dtype in LIBRARY_DTYPES
        self._bare_group = self.lane.group if bare else None

    @property
    def statistics(self) -> GatherStatistics:
        """What the gathers did."""
        # Counting these apart costs the least at each.
        gathers, self._bare_gathers = self._bare_gathers, 0
        self._statistics.add_plain(self.plan.shard_bytes, gathers=gathers)
        return self._statistics

    @property
    def output_values(self) -> int:
        """Of all shards together."""
        return self._agreement.values

    @property
    def shard_values(self) -> tuple[int, ...]:
        """Of each rank's shard."""
        return tuple(plan.values for plan in self._agreement.plans)

    @property
    def state_bytes(self) -> int:
        """Memory that coding keeps between gathers: HashCache or previous exponents, and ExpCache."""
        return sum(stage.state_bytes for stage in self._stages)

    def gather(self, shard: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """All shards in rank order.

        Args:
            shard: this rank's values, contiguous; not changed.
            out: contiguous, filled; may hold ``shard`` at its place. None for a new tensor ``[output_values]``.

        Raises:
            GatherError: it did not complete; ``out`` must not be used. CodedDataError: what came was not
                what the sender coded. After either, all ranks may try again together.
            ValueError: a tensor that is not of the plan.
        """
        # Small collectives take 100 us, and each line here is cold when it runs: nothing but the library's call.
        if (
            out is not None
            and self._bare_group is not None
            and shard.numel() == self.plan.values
            and out.numel() == self._agreement.values
            and shard.dtype is out.dtype is self.plan.dtype
            and shard.dim() == out.dim() == 1
            and shard.is_contiguous()
            and out.is_contiguous()
            and not (shard.requires_grad or out.requires_grad or out.is_inference())
            and self.on_sample is None
            and self.lane.idle
        ):
            try:
                dist.all_gather_single(out, shard, group=self._bare_group)
            except BaseException as error:
                raise self._plain.abandoned(error) from error
            self._bare_gathers += 1
            return out
        with torch.inference_mode(False):
            return self._gather(shard, out)

    def _gather(self, shard: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        filled = self._checked(shard, out)
        if len(self._stages) > 1 or not self.lane.idle:
            return self.start(shard, filled).wait_for_output()
        self._finish_in_flight()
        bits = _bits(shard), _bits(filled)
        if not self._stages:
            self._plain.gather(*bits)
            return filled
        # Nothing else is on its way, so this thread may do all of it: no hand-over, and one copy less.
        part = StagePart(self._stages[0], self._stages[0].transfer(*bits))
        with self._failing([part]):
            run_part_here(part)
            self._count([part])
        return filled

    def start(self, shard: torch.Tensor, out: torch.Tensor | None = None) -> GatherWork:
        """Begin a gather: coding and collectives run on the lane's threads, ``wait`` decodes.

        Neither tensor may be touched before ``wait`` returned. Arguments and errors as for ``gather``.
        """
        with torch.inference_mode(False):
            return self._start(shard, out)

    def _start(self, shard: torch.Tensor, out: torch.Tensor | None) -> GatherWork:
        filled = self._checked(shard, out)
        self._finish_in_flight()
        bits = _bits(shard), _bits(filled)
        if not self._stages:
            return self._plain.start(*bits, filled)
        parts, underway = start_parts([StagePart(stage, stage.transfer(*bits)) for stage in self._stages], self.lane)

        def end() -> None:
            self._in_flight = None
            with torch.inference_mode(False), self._failing(parts, underway):
                complete_parts(parts)
                self._count(parts)

        self._in_flight = GatherWork(self.plan.name, filled, underway, end)
        return self._in_flight

    def reset(self) -> None:
        """Values changed behind the gather's back (checkpoint loaded): the next one refreshes, on all ranks."""
        self._finish_in_flight()
        self._void()

    def close(self) -> None:
        """Give the group back (collective with some backends), if it is this gather's own."""
        self._finish_in_flight()
        if self._owns_lane:
            self.lane.close()

    @contextmanager
    def _failing(self, parts: Sequence[StagePart], underway: Future[None] | None = None) -> Iterator[None]:
        """What fails inside leaves this rank's state worth nothing; buffers go back in any case."""
        try:
            yield
        except BaseException:
            if underway is not None:
                wait_for([underway])
            self._count_failure()
            self._void()
            raise
        finally:
            for part in parts:
                part.stage.exchange.release(part.transfer)

    def _void(self) -> None:
        for stage in self._stages:
            stage.void()

    def _finish_in_flight(self) -> None:
        """The base of the next payload is not known before the last gather is done; its own wait() raises its error."""
        if self._in_flight is not None:
            self._in_flight.settle()

    def _count(self, parts: Sequence[StagePart]) -> None:
        transfers = [part.transfer for part in parts]
        verdicts = [transfer.verdict for transfer in transfers if transfer.verdict is not None]
        refreshed = any(verdict.refresh for verdict in verdicts)
        found = [] if refreshed else [part.stage.found(part.transfer) for part in parts]
        self._tell(
            GatherSample(
                attempt=transfers[0].attempt,
                kind="refresh" if refreshed else "coded",
                overflowed=any(verdict.remainder_bytes > 0 for verdict in verdicts),
                sent_bytes=sum(transfer.sent_bytes for transfer in transfers),
                plain_bytes=self.plan.shard_bytes,
                encode_ns=sum(transfer.encode_ns for transfer in transfers),
                collective_ns=sum(transfer.collective_ns for transfer in transfers),
                decode_ns=sum(transfer.decode_ns for transfer in transfers),
                parts=tuple(one for one in found if one is not None),
            )
        )
        error = next((transfer.encode_error for transfer in transfers if transfer.encode_error is not None), None)
        if error is not None:
            self._statistics.failed_encodes += 1
            # Not where it happened: a warning that is made an error must not keep this rank from the collective.
            warnings.warn(
                f"gather {self.plan.name!r}: rank {self.lane.rank} could not code its shard "
                f"({error!r}); all ranks exchanged plain shards instead",
                RuntimeWarning,
                stacklevel=2,
            )

    def _count_plain(self, collective_ns: int) -> None:
        size = self.plan.shard_bytes
        self._tell(GatherSample(self.statistics.gathers["plain"], "plain", False, size, size, 0, collective_ns, 0))

    def _count_failure(self) -> None:
        self._statistics.failed += 1

    def _tell(self, sample: GatherSample) -> None:
        self._statistics.add(sample)
        if self.on_sample is not None:
            self.on_sample(sample)

    def _checked(self, shard: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """The output, after a look at both."""
        self.lane.verify()
        if out is None:
            out = torch.empty(self.output_values, dtype=self.plan.dtype, device=self.lane.device)
        self._check("shard", shard, self.plan.values)
        self._check("out", out, self.output_values)
        return out

    def _check(self, name: str, tensor: torch.Tensor, values: int) -> None:
        where = f"gather {self.plan.name!r}: {name}"
        if tensor.dtype is not self.plan.dtype:
            raise ValueError(f"{where} is {tensor.dtype}; the plan is of {self.plan.dtype}, so build a gather for it")
        if tensor.numel() != values:
            raise ValueError(f"{where} has {tensor.numel()} values; the plan says {values}")
        if not tensor.is_contiguous():
            raise ValueError(f"{where} is not contiguous; pass .contiguous()")
        if tensor.device.type != self.lane.device.type:
            raise ValueError(f"{where} is on {tensor.device}, but the lane's gathers are on {self.lane.device}")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Flat, as integers of the values' width, out of reach of autograd and of inference mode; shares memory."""
    flat = tensor.detach().reshape(-1)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = flat.view(integers.get(flat.element_size(), flat.dtype))
    # What was made in inference mode may be written there alone, and the lane's threads are in none.
    return from_dlpack(bits) if bits.is_inference() else bits


def _any_rank(wanted: bool, group: dist.ProcessGroup | None) -> bool:
    """Whether any rank wants it (collective): all ranks make a clone, or none, or they would wait for each other."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return wanted
    everyone = [wanted] * dist.get_world_size(group)
    dist.all_gather_object(everyone, wanted, group=group)
    return any(everyone)
