"""The compressed Allgather: every rank's shard to every rank, of which only exponents that changed travel."""

from __future__ import annotations

import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.allgather.agreement import agree
from ciera_piper_core.allgather.exchange import Exchange, Transfer
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.shard_coding import ShardDecoder, ShardEncoder
from ciera_piper_core.allgather.statistics import GatherSample, GatherStatistics, Kind
from ciera_piper_core.allgather.work import GatherWork
from ciera_piper_core.exponents.backend import default_backend
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from ciera_piper_core.allgather.plan import GatherPlan
    from ciera_piper_core.exponents.backend import Backend


class CompressedGather:
    """Gathers one plan's shards, again and again.

    The first gather is a plain one, from which senders and receivers remember the exponents; from
    then on one collective carries signs, mantissas and what changed. Whatever goes wrong on a rank
    makes the next gather a plain one on all (``refresh``): nothing is ever decoded against another
    base than it was coded against, and what was rebuilt is verified by a checksum of the values.

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

        Raises:
            GatherMismatchError: ranks' plans do not fit together; on every rank.
        """
        self._owns_lane = lane is None
        # Nothing to code: the program's own group, on the program's own thread, as it would be without us.
        clone = bool(plan.selected) or timeout is not None
        self.lane = lane or GatherLane(group, device=device, timeout=timeout, clone=clone)
        self.plan = plan
        self.backend = backend or (default_backend(self.lane.device) if plan.selected else None)
        self._statistics = GatherStatistics.of_plan(plan)
        self._bare_gathers = 0
        self.on_sample: Callable[[GatherSample], None] | None = None
        """Called after each gather that completed, with what it did."""
        self._agreement = agree(plan, self.lane, self.backend)
        self._exchange = Exchange(self._agreement, self.lane)
        # A world of one has nobody to send to. Bare: nothing but the library's collective is needed.
        self._coded = bool(plan.selected) and self.lane.world > 1
        self._is_bare = self._agreement.even and not self._coded and self._agreement.most_values > 0
        self._bare_group = self.lane.group if self._is_bare else None
        self._bare_values = plan.values
        self._in_flight: GatherWork | None = None
        self._valid = False
        self._epoch = self._sequence = 0
        self._encoder: ShardEncoder | None = None
        self._decoders: dict[int, ShardDecoder] = {}
        if self._coded:
            self._build_coders()

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
        return self._agreement.offsets[-1]

    @property
    def shard_values(self) -> tuple[int, ...]:
        """Of each rank's shard."""
        return tuple(plan.values for plan in self._agreement.plans)

    @property
    def state_bytes(self) -> int:
        """Memory that coding keeps between gathers: HashCache or previous exponents, and ExpCache."""
        own = self._encoder.state_bytes if self._encoder is not None else 0
        return own + sum(decoder.state_bytes for decoder in self._decoders.values())

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
            and shard.numel() == self._bare_values
            and shard.dim() == out.dim() == 1
            and not shard.requires_grad
            and self.on_sample is None
            and self.lane.idle
        ):
            dist.all_gather_single(out, shard, group=self._bare_group)
            self._bare_gathers += 1
            return out
        self.lane.verify()
        if not self.lane.idle:
            return self.start(shard, out).wait_for_output()
        out = self._checked(shard, out)
        if self._is_bare:
            self._run_bare(shard, out)
            return out
        # Nothing else is on its way, so this thread may do all of it: no hand-over, and one copy less.
        self._finish_in_flight()
        transfer = Transfer(_bits(shard), _bits(out), self._epoch, self._sequence)
        with self._ending(transfer):
            if self._coded:
                if self._valid:
                    self._exchange.place_payload_in_place(transfer)
                self._encode(transfer)
                self._exchange.run(transfer)
            else:
                self._exchange.run_plain(transfer)
            self._complete(transfer)
        return out

    def start(self, shard: torch.Tensor, out: torch.Tensor | None = None) -> GatherWork:
        """Begin a gather: coding and collectives run on the lane's threads, ``wait`` decodes.

        Neither tensor may be touched before ``wait`` returned. Arguments and errors as for ``gather``.
        """
        out = self._checked(shard, out)
        self._finish_in_flight()
        transfer = Transfer(_bits(shard), _bits(out), self._epoch, self._sequence)
        if self._is_bare and self.lane.idle:
            return self._start_bare(transfer, out)
        if not self._coded and not self.lane.is_clone:
            # Uneven shards have no asynchronous collective, and no other thread may use the program's group.
            self.gather(shard, out)
            return GatherWork(self.plan.name, out, None, lambda: None)
        if not self._coded:
            underway = self.lane.carry(lambda: self._exchange.run_plain(transfer))
        else:
            if self._valid:
                self._exchange.place_payload_apart(transfer)
            encoded = self.lane.code(lambda: self._encode(transfer))

            def carry() -> None:
                encoded.result()
                self._exchange.run(transfer)

            underway = self.lane.carry(carry)

        def end() -> None:
            self._in_flight = None
            with self._ending(transfer):
                underway.result()
                self._complete(transfer)

        work = GatherWork(self.plan.name, out, underway, end)
        if self._coded:
            self._in_flight = work
        return work

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
    def _ending(self, transfer: Transfer) -> Iterator[None]:
        """What ends here gives its buffers back; if it fails, this rank's state is worth nothing."""
        try:
            yield
        except BaseException:
            self.statistics.failed += 1
            self._void()
            raise
        finally:
            self._exchange.release(transfer)

    def _run_bare(self, shard: torch.Tensor, out: torch.Tensor) -> None:
        """The plain collective on this thread, looked at and timed."""
        self._checked(shard, out)
        began = time.perf_counter_ns()
        with region("allgather.collective"):
            try:
                self.lane.all_gather_now(out, shard)
            except BaseException as error:
                self.statistics.failed += 1
                raise self._exchange.abandoned(error) from error
        self._count_bare(time.perf_counter_ns() - began)

    def _start_bare(self, transfer: Transfer, out: torch.Tensor) -> GatherWork:
        """Have the library make the collective asynchronously; those that the lane makes later come after it."""
        began = time.perf_counter_ns()
        try:
            # As bytes: gloo knows no 16-bit integers.
            library_work = self.lane.start_all_gather(transfer.out.view(torch.uint8), transfer.shard.view(torch.uint8))
        except BaseException as error:
            self.statistics.failed += 1
            raise self._exchange.abandoned(error) from error

        def end() -> None:
            try:
                if library_work is not None:
                    library_work.wait()
            except BaseException as error:
                self.statistics.failed += 1
                raise self._exchange.abandoned(error) from error
            self._count_bare(time.perf_counter_ns() - began)

        return GatherWork(self.plan.name, out, None, end)

    def _count_bare(self, collective_ns: int) -> None:
        size = self.plan.shard_bytes
        if self.on_sample is None:
            self.statistics.add_plain(size, collective_ns)
            return
        sample = GatherSample(self.statistics.gathers["plain"], "plain", False, size, size, 0, collective_ns, 0)
        self.statistics.add(sample)
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
        if _is_of(tensor, self.plan.dtype, values) and tensor.device.type == self.lane.device.type:
            return
        where = f"gather {self.plan.name!r}: {name}"
        if tensor.dtype is not self.plan.dtype:
            raise ValueError(f"{where} is {tensor.dtype}; the plan is of {self.plan.dtype}, so build a gather for it")
        if tensor.numel() != values:
            raise ValueError(f"{where} has {tensor.numel()} values; the plan says {values}")
        if not tensor.is_contiguous():
            raise ValueError(f"{where} is not contiguous; pass .contiguous()")
        raise ValueError(f"{where} is on {tensor.device}, but the lane's gathers are on {self.lane.device}")

    def _finish_in_flight(self) -> None:
        """The base of the next payload is not known before the last gather is done; its own wait() raises its error."""
        if self._in_flight is not None:
            self._in_flight.settle()

    def _encode(self, transfer: Transfer) -> None:
        """Code the shard, if receivers share a base. What fails here makes all ranks refresh instead."""
        began = time.perf_counter_ns()
        if self._valid and self._encoder is not None:
            assert transfer.payload is not None
            with region("allgather.encode"):
                try:
                    transfer.encoded = self._encoder.encode(transfer.shard, transfer.payload)
                except Exception as error:
                    self._encoder.abort()
                    transfer.encode_error = error
        transfer.encode_ns = time.perf_counter_ns() - began

    def _complete(self, transfer: Transfer) -> None:
        """Rebuild what came, and only then let this rank's state advance."""
        if not self._coded:
            self._count(transfer, "plain", 0)
            return
        began = time.perf_counter_ns()
        verdict = transfer.verdict
        assert verdict is not None
        assert self._encoder is not None
        with region("allgather.decode"):
            if verdict.refresh:
                self._refresh(transfer, verdict.next_epoch)
            else:
                for rank, decoder in self._decoders.items():
                    decoder.decode(
                        transfer.headers[rank],
                        transfer.heads[rank],
                        self._exchange.received(transfer, rank),
                        self._agreement.of_rank(transfer.out, rank),
                    )
                self._encoder.commit()
                self._sequence = (self._sequence + 1) % 2**32
        decode_ns = time.perf_counter_ns() - began
        self._count(transfer, "refresh" if verdict.refresh else "coded", decode_ns)
        if transfer.encode_error is not None:
            self.statistics.failed_encodes += 1
            # Not where it happened: a warning that is made an error must not keep this rank from the collective.
            warnings.warn(
                f"gather {self.plan.name!r}: rank {self.lane.rank} could not code its shard "
                f"({transfer.encode_error!r}); all ranks exchanged plain shards instead",
                RuntimeWarning,
                stacklevel=2,
            )

    def _refresh(self, transfer: Transfer, epoch: int) -> None:
        """Every rank has plain values of all ranks: they are the base from now on."""
        assert self._encoder is not None
        self._void()
        # From the output, which is what was sent, whatever became of the shard meanwhile.
        self._encoder.refresh(self._agreement.of_rank(transfer.out, self.lane.rank))
        for rank, decoder in self._decoders.items():
            decoder.refresh(self._agreement.of_rank(transfer.out, rank))
        self._epoch, self._sequence, self._valid = epoch, 0, True

    def _void(self) -> None:
        """What other ranks hold is not known any more: this rank asks for a refresh."""
        self._valid = False
        if self._encoder is not None:
            self._encoder.reset()
        for decoder in self._decoders.values():
            decoder.reset()

    def _count(self, transfer: Transfer, kind: Kind, decode_ns: int) -> None:
        encoded = transfer.encoded if kind == "coded" else None
        assert encoded is None or self._encoder is not None
        sample = GatherSample(
            attempt=transfer.attempt,
            kind=kind,
            overflowed=transfer.verdict is not None and transfer.verdict.remainder_bytes > 0,
            sent_bytes=transfer.sent_bytes,
            plain_bytes=self.plan.shard_bytes,
            encode_ns=transfer.encode_ns,
            collective_ns=transfer.collective_ns,
            decode_ns=decode_ns,
            segments=self._encoder.samples(encoded) if encoded is not None and self._encoder is not None else (),
        )
        self.statistics.add(sample)
        if self.on_sample is not None:
            self.on_sample(sample)

    def _build_coders(self) -> None:
        assert self.backend is not None
        lane = self.lane
        self._encoder = ShardEncoder(
            self.plan, self._agreement.shapes[lane.rank], self.backend, lane.device, lane.encode_workspace()
        )
        # Each rank begins with the next one, so that not all read the same memory at once.
        for rank in ((lane.rank + step) % lane.world for step in range(1, lane.world)):
            self._decoders[rank] = ShardDecoder(
                rank,
                self._agreement.plans[rank],
                self._agreement.shapes[rank],
                self.backend,
                lane.device,
                lane.decode_workspace,
            )


def _is_of(tensor: torch.Tensor, dtype: torch.dtype, values: int) -> bool:
    return tensor.dtype is dtype and tensor.numel() == values and tensor.is_contiguous()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Flat, as integers of the values' width, out of reach of autograd; shares memory."""
    flat = tensor.detach().reshape(-1)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return flat.view(integers.get(flat.element_size(), flat.dtype))
