"""A process group of its own for compressed gathers, and the threads that keep its collectives in order."""

from __future__ import annotations

import time
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from ciera_piper_core.allgather.buffers import BufferPool
from ciera_piper_core.allgather.errors import GatherError
from ciera_piper_core.allgather.worker import Worker
from ciera_piper_core.exponents.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from datetime import timedelta

R = TypeVar("R")

PROBE_BYTES, PROBES = 1 << 20, 3
"""A rank's part of a gather that measures the wire, and how many are made: the fastest counts."""


class GatherLane:
    """What the gathers of one training loop share: group, threads, buffers.

    Collectives run one after another in the order in which gathers were started, which is the
    program's and so the same on all ranks. The group is a clone, so that they never mix with those
    that the program itself makes on the original, from another thread.

    One thread of the program starts gathers; several would have to agree on an order on all ranks.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        device: torch.device | str = "cpu",
        timeout: timedelta | None = None,
        clone: bool = True,
    ) -> None:
        """Collective over the group.

        Args:
            group: whose ranks gather; None for all ranks, or for a world of one without ``torch.distributed``.
            device: where shards are.
            timeout: how long a collective may take before ranks get an error; None for that of ``group``.
            clone: False takes ``group`` itself, for a lane that is only used from the program's thread.

        Raises:
            ValueError: a group without ``torch.distributed``, or a timeout for a group that is not a clone.
        """
        self.device = torch.device(device)
        self.buffers = BufferPool(self.device)
        self.decode_workspace = Workspace(self.device)
        self._group: dist.ProcessGroup | None = None
        self.is_clone = clone
        if timeout is not None and not clone:
            raise ValueError("a group that is not a clone keeps its timeout")
        self.rank, self.world = 0, 1
        if dist.is_available() and dist.is_initialized():
            parent = group or dist.group.WORLD
            assert parent is not None
            self.rank, self.world = parent.rank(), parent.size()
            if self.world > 1:
                self._group = _clone(parent, self.device, timeout) if clone else parent
        elif group is not None:
            raise ValueError("a process group without torch.distributed; call init_process_group first")
        self._coder = Worker("ciera-coder")
        self._carrier = Worker("ciera-collectives")
        self._last: Future[Any] | None = None
        self._broken: str | None = None
        self._wire_bytes_per_s: float | None = None
        on_cuda = self.device.type == "cuda"
        self._coder_stream = _stream(self.device) if on_cuda else None
        self._carrier_stream = _stream(self.device) if on_cuda else None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The clone, or the group itself; None in a world of one."""
        return self._group

    def encode_workspace(self) -> Workspace:
        """Scratch for one plan's encoders.

        Shared on the CPU. A kernel on a GPU may still read what was given back, and other plans' code
        runs on another stream, so there each has its own.
        """
        return self.decode_workspace if self.device.type == "cpu" else Workspace(self.device)

    def wire_bytes_per_s(self) -> float:
        """What a rank receives in a second of a plain gather, on the slowest rank (collective, the first time)."""
        if self._wire_bytes_per_s is None:
            self.drain()
            part = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=self.device)
            out = torch.empty(self.world * PROBE_BYTES, dtype=torch.uint8, device=self.device)
            seconds = min(self._probe(out, part) for _ in range(PROBES))
            everyone = [seconds] * self.world
            if self._group is not None:
                dist.all_gather_object(everyone, seconds, group=self._group)
            self._wire_bytes_per_s = (self.world - 1) * PROBE_BYTES / max(everyone)
        return self._wire_bytes_per_s

    def _probe(self, out: torch.Tensor, part: torch.Tensor) -> float:
        began = time.perf_counter()
        self.all_gather_now(out, part)
        return time.perf_counter() - began

    @property
    def idle(self) -> bool:
        """Whether none is queued or running, so that a collective on the calling thread keeps the order.

        Never of a lane that is out of use.
        """
        if self._last is not None and self._last.done():
            self._last = None
        return self._last is None and self._broken is None

    def drain(self) -> None:
        """Wait until all queued collectives are done, whether they succeed or not."""
        if self._last is not None:
            wait_for([self._last])

    def verify(self) -> None:
        """Look whether the lane can be used.

        Raises:
            GatherError: it cannot, ever again.
        """
        if self._broken is not None:
            raise GatherError(self._broken)

    def fail(self, reason: str) -> None:
        """From now on every use raises with this reason, such as that ranks may not be at the same collective."""
        self._broken = self._broken or reason

    def code(self, job: Callable[[], R]) -> Future[R]:
        """Queue work of this rank alone, on its own thread (and stream, after what the caller's has queued)."""
        return self._coder.submit(self._on(self._coder_stream, job))

    def carry(self, job: Callable[[], R]) -> Future[R]:
        """Queue what makes collectives, on the one thread for them; not on a group that the program uses too."""
        assert self.is_clone
        future = self._carrier.submit(self._on(self._carrier_stream, job))
        self._last = future
        return future

    def all_gather(self, out: torch.Tensor, part: torch.Tensor, meanwhile: Callable[[], None] | None = None) -> None:
        """The plain collective, done when this returns (on CUDA: for the current stream).

        Args:
            out: world times as many elements as ``part``. part: of this rank; may be its place in ``out``.
            meanwhile: called while the collective is on its way.
        """
        work = self.start_all_gather(out, part)
        try:
            if meanwhile is not None:
                meanwhile()
        finally:
            if work is not None:
                work.wait()

    def start_all_gather(self, out: torch.Tensor, part: torch.Tensor) -> dist.Work | None:
        """:meth:`all_gather`, done when ``wait()`` of what is returned has returned; None if it is done now."""
        if self._group is None:
            self.all_gather_now(out, part)
            return None
        work: dist.Work | None = dist.all_gather_single(_flat(out), _flat(part), group=self._group, async_op=True)
        return work

    def all_gather_now(self, out: torch.Tensor, part: torch.Tensor) -> None:
        """:meth:`all_gather` as the library does it when nothing is to be done meanwhile."""
        if self._group is not None:
            dist.all_gather_single(_flat(out), _flat(part), group=self._group)
        elif out.data_ptr() != part.data_ptr():
            _flat(out).copy_(_flat(part))

    def close(self) -> None:
        """End the threads and leave the clone (collective with some backends). What is queued ends first."""
        self.drain()
        self._coder.close()
        self._carrier.close()
        self.fail("this lane was closed; make another, and its gathers anew")
        # A part of the job's ranks names its clones by how many groups there are: destroyed, the name would come
        # again, and with it what the first one left in the store, on which the second would hang.
        # A group that is not a clone is the program's own.
        if self._group is not None and self.is_clone and dist.is_initialized() and _is_whole(self._group):
            dist.destroy_process_group(self._group)
        self._group = None

    def _on(self, stream: torch.cuda.Stream | None, job: Callable[[], R]) -> Callable[[], R]:
        if stream is None:
            return job
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()

        def placed() -> R:
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                result = job()
                # The host learns of sizes and headers anyway; from here on any stream may use what was made.
                stream.synchronize()
                return result

        return placed


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def _is_whole(group: dist.ProcessGroup) -> bool:
    """Whether the group has all ranks of the job."""
    return group.size() == dist.get_world_size()


def _clone(parent: dist.ProcessGroup, device: torch.device, timeout: timedelta | None) -> dist.ProcessGroup:
    """A group of the same ranks in the same order, with the same backends."""
    if timeout is None:
        options = getattr(parent._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
    clone = dist.new_group(
        ranks=dist.get_process_group_ranks(parent),
        timeout=timeout,
        backend=dist.get_backend_config(parent),
        # Only the members take part: other ranks of the job need not know.
        use_local_synchronization=not _is_whole(parent),
        group_desc="compressed allgather",
        sort_ranks=False,
    )
    assert isinstance(clone, dist.ProcessGroup)
    return clone
