"""Sums the gradients of a step between ranks, many parameters at a time and while the backward pass goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BUCKET_BYTES = 25 << 20
"""Gradients that travel together: few enough messages, and the first can go while the backward pass works on."""


@dataclass(eq=False)
class _Bucket:
    """Neighbouring parameters that are summed over the same ranks.

    Attributes:
        group: the ranks; None for none.
        names: of the parameters. buffer: their gradients, one after the other.
        travelling: what is summed between ranks, where that is narrower than the buffer; None while nothing is.
        missing: those whose gradient the last backward pass has not given yet.
        work: the sum under way, or over.
        sent: no further gradient may come.
    """

    group: dist.ProcessGroup | None
    names: list[str]
    buffer: torch.Tensor
    travelling: torch.Tensor | None = None
    missing: set[str] = field(default_factory=set)
    work: Any = None
    sent: bool = False


class GradientBuckets:
    """Takes gradients off parameters as the backward passes of a step make them, adds them up and reduces them.

    Nothing is divided: who wants a mean weights the losses (``1 / (microbatches * data_width)`` each).

    A step: ``begin``; for each microbatch a backward pass, ``last()`` before the last one; ``finish``.
    Gradients end up here, in ``sum_dtype``, and parameters' ``grad`` is None.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        group_of: Callable[[str], dist.ProcessGroup | None],
        dtype: torch.dtype,
        *,
        sum_dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        hooks: bool = True,
    ) -> None:
        """
        Args:
            parameters: by name, in the order of the forward pass; the same names on all ranks of a group.
            group_of: the ranks that a parameter's gradient is summed over; None for none.
            dtype: in which gradients travel and are summed between ranks.
            sum_dtype: in which a rank adds up those of its microbatches before; None for ``dtype``. A narrow
                type loses the more the more microbatches there are.
            bucket_bytes: most bytes of a bucket, unless one parameter has more.
            hooks: take gradients and send full buckets in the backward pass. False for passes that write
                ``grad`` without telling (the split ones of zero-bubble schedules): ``finish`` does all.
        """
        self._parameters = {name: weight for name, weight in parameters.items() if weight.requires_grad}
        self._dtype, self._sum_dtype = dtype, sum_dtype or dtype
        self._buckets = self._fill(group_of, bucket_bytes)
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self._views: dict[str, torch.Tensor] = {}
        for bucket in self._buckets:
            sizes = [self._parameters[name].numel() for name in bucket.names]
            for name, part in zip(bucket.names, torch.split(bucket.buffer, sizes), strict=True):
                self._views[name] = part.view(self._parameters[name].shape)
        self._taken: set[str] = set()
        self._is_last = False
        self._handles = [
            weight.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]
            for name, weight in self._parameters.items()
            if hooks
        ]

    def begin(self) -> None:
        """Forget the gradients of the step before."""
        self._taken.clear()
        self._is_last = False
        for weight in self._parameters.values():
            weight.grad = None
        for bucket in self._buckets:
            if bucket.work is not None:
                # Of a step that was given up: the buffer is still written to.
                bucket.work.wait()
            bucket.work, bucket.travelling, bucket.sent = None, None, False

    def last(self) -> None:
        """The next backward pass is the last of this step: buckets go as soon as they are full."""
        self._is_last = True
        for bucket in self._buckets:
            bucket.missing = set(bucket.names)

    def finish(self) -> dict[str, torch.Tensor]:
        """Wait for all sums (collective): the gradient of each parameter, by name; zero for one that got none.

        They are views of the buckets, good until ``begin``.
        """
        with region("gradient_reduce"):
            for name, weight in self._parameters.items():
                if weight.grad is not None:
                    self._take(name, weight)
                if name not in self._taken:
                    self._views[name].zero_()
            for bucket in self._buckets:
                self._send(bucket)
            for bucket in self._buckets:
                if bucket.work is not None:
                    bucket.work.wait()
                    bucket.work = None
                if bucket.travelling is not None:
                    bucket.buffer.copy_(bucket.travelling)
                    bucket.travelling = None
        return {name: self._views[name] for name in self._parameters}

    def fit(self) -> bool:
        """False once a parameter has got another shape: make others."""
        return all(self._views[name].shape == weight.shape for name, weight in self._parameters.items())

    def close(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _fill(self, group_of: Callable[[str], dist.ProcessGroup | None], most_bytes: int) -> list[_Bucket]:
        """Buckets from the last parameter to the first, which is about the order of the backward pass."""
        groups: dict[dist.ProcessGroup | None, list[list[str]]] = {}
        sizes: dict[dist.ProcessGroup | None, int] = {}
        order: list[tuple[dist.ProcessGroup | None, list[str]]] = []
        for name in reversed(self._parameters):
            group = group_of(name)
            if group is not None and dist.get_world_size(group) == 1:
                group = None
            size = self._parameters[name].numel() * self._dtype.itemsize
            # Bounds are in the parameters' own order, hence the same on all ranks of the group.
            if group not in groups or sizes[group] + size > most_bytes:
                names: list[str] = []
                groups.setdefault(group, []).append(names)
                order.append((group, names))
                sizes[group] = 0
            groups[group][-1].append(name)
            sizes[group] += size
        buckets = []
        for group, names in order:
            length = sum(self._parameters[name].numel() for name in names)
            device = self._parameters[names[0]].device
            buckets.append(_Bucket(group, names, torch.zeros(length, dtype=self._sum_dtype, device=device)))
        return buckets

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def taken(weight: torch.Tensor) -> None:
            self._take(name, weight)
            if not self._is_last:
                return
            self._bucket_of[name].missing.discard(name)
            # In their order, whichever is full first: all ranks send the same one next.
            for bucket in self._buckets:
                if bucket.sent:
                    continue
                if bucket.missing:
                    break
                with region("gradient_reduce"):
                    self._send(bucket)

        return taken

    @torch.no_grad()
    def _take(self, name: str, weight: torch.Tensor) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        if self._bucket_of[name].sent:
            raise RuntimeError(
                f"a gradient of {name} came after its sum was under way; call last() before the last backward"
                " pass of a step, and begin() before the first"
            )
        if name in self._taken:
            self._views[name].add_(gradient)
        else:
            self._views[name].copy_(gradient)
            self._taken.add(name)

    def _send(self, bucket: _Bucket) -> None:
        if bucket.sent:
            return
        bucket.sent = True
        if bucket.group is None:
            return
        if self._sum_dtype != self._dtype:
            bucket.travelling = bucket.buffer.to(self._dtype)
        moved = bucket.buffer if bucket.travelling is None else bucket.travelling
        bucket.work = dist.all_reduce(moved, group=bucket.group, async_op=True)
