"""FSDP that gathers through the compressed Allgather: whole, and with parts of it switched off."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ciera_piper_core.allgather.adaptive import AdaptiveCompression
from ciera_piper_core.allgather.fsdp import compress_all_gathers
from ciera_piper_core.allgather.fsdp_groups import (
    ParameterGroup,
    current_all_gather,
    parameter_groups,
    set_all_gather,
    waits_at_once,
)
from ciera_piper_core.allgather.plan import DEFAULT_BLOCK, CodingSettings
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.system import Option

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
except ImportError as error:
    from ciera_piper_core.allgather.fsdp_groups import UnsupportedTorchError

    raise UnsupportedTorchError(f"{error.name}") from None

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch.distributed.fsdp import FSDPModule

    from ciera_piper_core.allgather.fsdp import CompressedModel

CODING_OPTIONS: Mapping[str, Option] = {
    "mode": Option("auto", "how changed exponents are coded", ("auto", "block", "delta")),
    "block": Option(DEFAULT_BLOCK, "values of a block", tuple(BLOCKS)),
}
SELECTION_OPTIONS: Mapping[str, Option] = {
    "settle": Option(2, "steps before changes are recorded; the first one sends everything", minimum=1),
    "record": Option(
        3, "steps whose changes are recorded; then gathers are timed, and what gains stays compressed", minimum=1
    ),
    "trial": Option(
        2, "steps then run plain and as many compressed; what is slower goes. 0: gathers alone decide", minimum=0
    ),
}

AHEAD = 2
"""Modules whose parameters are on their way while one computes. With one, the wire waits from the end of its gather
until the next one's parameters are rounded, coded and handed over; with two, that happens beside a gather, for the
memory of one more whole module."""


class CieraReuse(FSDPSystem):
    """Every gather sends only the exponents that changed; nothing else of CIERA.

    A gather ends before anything else begins, as torch's own does on a CPU.

    Attributes:
        compressed: the gathers: statistics, plans.
        adaptive: what finds out where that gains; None where all is compressed, or nothing.
    """

    name: ClassVar[str] = "ciera-reuse"
    summary: ClassVar[str] = "FSDP, exponents that did not change are not sent"
    options: ClassVar[Mapping[str, Option]] = {**FSDPSystem.options, **CODING_OPTIONS}
    loss_tolerance: ClassVar[float] = 0.0
    exact_as: ClassVar[str] = "fsdp"

    coded: ClassVar[bool] = True
    """Whether anything is compressed at first."""
    selects: ClassVar[bool] = False
    """Whether it is found out what gains, and the rest gathered plain."""
    pipelined: ClassVar[bool] = False
    """Whether gathers run beside computing."""

    compressed: CompressedModel
    adaptive: AdaptiveCompression | None = None

    @property
    def settled_after(self) -> int:
        """Steps of this process after which the way of gathering does not change any more: measure from there."""
        return self.adaptive.settled_after if self.adaptive else 0

    def attach(self) -> None:
        settings = CodingSettings(self.options_given["mode"], self.options_given["block"])
        only = None if self.coded else (lambda segment: False)
        self.compressed = compress_all_gathers(
            self.model, settings, only=only, staged=None if self.pipelined else False
        )
        if self.selects:
            steps = {name: self.options_given[name] for name in SELECTION_OPTIONS}
            self.adaptive = AdaptiveCompression([self.compressed], **steps, group=self.ranks.group)
        for group in parameter_groups(self.model):
            set_all_gather(group, _Carrier(group, current_all_gather(group), self.pipelined))
        if self.pipelined:
            self._gather_ahead()

    def accumulate(self, batch: Tensor) -> float:
        if self.adaptive:
            self.adaptive.before_step()
        return super().accumulate(batch)

    def update(self) -> float:
        norm = super().update()
        if self.adaptive:
            self.adaptive.after_step(applied=not math.isnan(norm))
        return norm

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # The masters are written in place, which no hook of loading sees.
        self.compressed.reset()

    def close(self) -> None:
        self.compressed.remove()
        super().close()

    def _gather_ahead(self) -> None:
        """In both passes, ask for the parameters of modules before their turn."""
        layers = [cast("FSDPModule", layer) for layer in self.model.layers.values()]
        self.root.set_modules_to_forward_prefetch(layers[:AHEAD])
        self.root.set_modules_to_backward_prefetch(layers[: -AHEAD - 1 : -1])
        for place, layer in enumerate(layers):
            layer.set_modules_to_forward_prefetch(layers[place + 1 : place + 1 + AHEAD])
            layer.set_modules_to_backward_prefetch(layers[max(place - AHEAD, 0) : place][::-1])


class CieraSelection(CieraReuse):
    """``ciera-reuse``, and after some steps only what makes gathers, and whole steps, faster stays compressed."""

    name: ClassVar[str] = "ciera-selection"
    summary: ClassVar[str] = "FSDP with exponent reuse where it is measured to gain"
    options: ClassVar[Mapping[str, Option]] = {**CieraReuse.options, **SELECTION_OPTIONS}
    selects: ClassVar[bool] = True


class Ciera(CieraSelection):
    """All of CIERA: reuse, selection, and gathers that run beside computing, two modules ahead in both passes."""

    name: ClassVar[str] = "ciera"
    summary: ClassVar[str] = "FSDP with the compressed Allgather: exponent reuse, selection, pipelining"
    pipelined: ClassVar[bool] = True


class CieraOff(CieraReuse):
    """The way that ``ciera`` gathers, with nothing compressed: what of its speed is not the codec's.

    The same objects carry the same gathers, as early, beside computing; only they are torch's own.
    """

    name: ClassVar[str] = "ciera-off"
    summary: ClassVar[str] = "ciera's way of gathering, with nothing compressed"
    coded: ClassVar[bool] = False
    pipelined: ClassVar[bool] = True


class _Carrier(AllGather):
    """Decides when a group's gathers are waited for.

    On a CPU FSDP2 asks for gathers that have ended when the call returns, also for those that it
    begins ahead of their time. It takes work in their place, and waits for that when it needs the
    parameters.
    """

    def __init__(self, group: ParameterGroup, inner: AllGather, pipelined: bool) -> None:
        self.group, self.inner, self.pipelined = group, inner, pipelined
        self._streams = group.device.type != "cpu"

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.inner.allocate(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        ahead = self.pipelined and not self._streams and not waits_at_once(self.group)
        work = self.inner(output_tensor, input_tensor, group, async_op or ahead)
        if work is not None and not self.pipelined:
            work.wait()
            return None
        return work
