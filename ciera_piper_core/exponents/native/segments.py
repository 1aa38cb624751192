"""All segments of a shard in one call into C: what small segments cost is then bytes, not Python."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.native.functions import segments_functions
from ciera_piper_core.exponents.native.library import ISA_LEVELS
from ciera_piper_core.exponents.native.rans import NO_PLAN, PLAN_BYTES
from ciera_piper_core.exponents.payload import HEADER_BYTES
from ciera_piper_core.exponents.segment import SegmentStateError
from ciera_piper_core.exponents.segments import FOUND, SegmentFaultError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.exponents.layout import FloatLayout
    from ciera_piper_core.exponents.segment import CodingSettings
    from ciera_piper_core.exponents.segments import Received, ShardPlaces
    from ciera_piper_core.exponents.workspace import Workspace

STATE_ALIGNMENT = 64
"""Bytes: planes begin at cache lines."""

HASH_BYTES = 16

SETTINGS = ("block", "delta", "auto")
"""Modes by their numbers in C."""

_NUMBERS = (
    *("values", "first", "fixed", "plain", "bound"),
    *("exponents", "hashes", "new_hashes", "changed_at", "symbols_at"),
    *("checksum", *FOUND),
)
_SEGMENT = np.dtype([*((name, np.uint64) for name in _NUMBERS), ("plans", np.uint8, (2, PLAN_BYTES))], align=True)
"""``struct ciera_segment``; addresses are numbers."""

_FOUND_AT = _NUMBERS.index(FOUND[0])

_RECORD_FAULTS = {
    1: "a segment's record was changed on the way: its check does not match (segment {segment})",
    2: "a segment coded in unknown mode {found} (segment {segment})",
    3: "segment {segment} claims {found} coded bytes; {expected} are possible",
    4: "the segments' coded bytes make {found}, the header says {expected}",
}
_SEGMENT_FAULTS = {
    5: "the bitmap marks a block that there is not",
    6: "the bitmap marks {found} blocks, the record {expected}",
    7: "{found} coded bytes for no changed block",
    8: "{found} coded bytes are not what an encoder wrote for {expected} symbols",
    9: "the rebuilt values have checksum {found:016x}, the sender's have {expected:016x}",
}
_NO_MEMORY = 10


class _Segments:
    """The array of a shard's segments, and what is kept of them."""

    def __init__(self, places: ShardPlaces, layout: FloatLayout, block: int, isa: str, workspace: Workspace) -> None:
        self._c = segments_functions()
        if self._c["struct_bytes"]() != _SEGMENT.itemsize:
            raise RuntimeError("the native kernels were built from other sources: a segment has another size there")
        self.valid = False
        self._places, self._layout, self._workspace = places, layout, workspace
        self._kind = ISA_LEVELS.index(isa), layout.code, block
        self._array = np.zeros(len(places.segments), dtype=_SEGMENT)
        for row, one in zip(self._array, places.segments, strict=True):
            row["values"], row["first"], row["fixed"] = one.values, one.first, one.offset
            row["plain"], row["bound"] = one.bound is None, one.bound or 0
        self._array["plans"][:, :, 0] = NO_PLAN
        self._coded = np.flatnonzero(self._array["plain"] == 0)
        self._all = self._array.ctypes.data, len(self._array)
        self._scratch_bytes = int(self._c["scratch_bytes"](*self._all, block))
        self._refresh_bytes = int(self._c["refresh_bytes"](layout.code, *self._all))

    def _kept(self, name: str, sizes: list[int]) -> torch.Tensor:
        """Memory for so many bytes of each coded segment, whose addresses go to the field."""
        starts = list(accumulate((-(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT for size in sizes), initial=0))
        memory = torch.empty(starts[-2] + sizes[-1] if sizes else 0, dtype=torch.uint8)
        self._array[name][self._coded] = [memory.data_ptr() + start for start in starts[:-1]]
        return memory

    def _refresh(self, values: torch.Tensor, mode: int) -> None:
        self.valid = False
        at = self._pointer(values)
        with self._workspace.borrow(self._refresh_bytes) as scratch:
            self._c["refresh"](*self._kind, mode, *self._all, at, scratch.data_ptr())
        self.valid = True

    def _pointer(self, values: torch.Tensor) -> int:
        """The address of a shard's values."""
        layout, count = self._layout, self._places.values
        if (
            values.dtype is not layout.bits_dtype
            or values.numel() != count
            or not values.is_contiguous()
            or not values.is_cpu
        ):
            raise ValueError(
                f"a shard is {count} contiguous values of {layout.bits_dtype} on the CPU, not {values.numel()} of "
                f"{values.dtype} on {values.device}"
            )
        return values.data_ptr()


class NativeSender(_Segments):
    """:class:`~ciera_piper_core.exponents.segments.ShardSender` in C, on the thread that calls.

    Not for several threads at once; the GIL is released.
    """

    def __init__(
        self, places: ShardPlaces, layout: FloatLayout, settings: CodingSettings, isa: str, workspace: Workspace
    ) -> None:
        super().__init__(places, layout, settings.block, isa, workspace)
        self._mode = SETTINGS.index(settings.mode)
        self._pending: torch.Tensor | None = None
        if settings.mode == "block":
            sizes = [-(-one.values // settings.block) * HASH_BYTES for one, _ in places.coded]
            self._state = [self._kept("hashes", sizes), self._kept("new_hashes", sizes)]
        else:
            self._state = [self._kept("exponents", [layout.exponent_bytes(one.values) for one, _ in places.coded])]

    @property
    def state_bytes(self) -> int:
        return sum(state.numel() for state in self._state)

    def encode(self, values: torch.Tensor, payload: torch.Tensor) -> tuple[NDArray[np.int64], int]:
        if not self.valid:
            raise SegmentStateError("the shard has no base to code against; exchange plain values, then refresh")
        if self._pending is not None:
            raise SegmentStateError("the shard's last encode was neither committed nor aborted")
        source, to = self._pointer(values), payload.data_ptr()
        if payload.numel() < self._places.payload_bytes or payload.dtype is not torch.uint8:
            raise ValueError(f"the payload has {payload.numel()} bytes, {self._places.payload_bytes} may be needed")
        found = self._workspace.take(self._scratch_bytes)
        outputs = to + HEADER_BYTES, to, to + self._places.fixed_bytes, found.data_ptr()
        size: int = self._c["encode"](*self._kind, self._mode, *self._all, source, *outputs)
        if size < 0:
            self._workspace.give(found)
            raise MemoryError("no memory to code a shard's segments")
        self._pending = found
        numbers = self._array.view(np.int64).reshape(len(self._array), _SEGMENT.itemsize // 8)
        return numbers[self._coded, _FOUND_AT : _FOUND_AT + len(FOUND)], size

    def commit(self) -> None:
        if self._pending is None:
            raise SegmentStateError("commit: nothing was encoded since the last commit or abort")
        self._c["commit"](*self._kind, self._mode, *self._all)
        self.abort()

    def abort(self) -> None:
        if self._pending is not None:
            self._workspace.give(self._pending)
            self._pending = None

    def refresh(self, values: torch.Tensor) -> None:
        self.abort()
        self._refresh(values, self._mode)

    def reset(self) -> None:
        self.abort()
        self.valid = False


class NativeReceiver(_Segments):
    """:class:`~ciera_piper_core.exponents.segments.ShardReceiver` in C, likewise."""

    def __init__(self, places: ShardPlaces, layout: FloatLayout, block: int, isa: str, workspace: Workspace) -> None:
        super().__init__(places, layout, block, isa, workspace)
        self._state = self._kept("exponents", [layout.exponent_bytes(one.values) for one, _ in places.coded])
        self._fault = np.zeros(3, dtype=np.uint64)

    @property
    def state_bytes(self) -> int:
        return self._state.numel()

    def decode(self, variable_bytes: int, received: Received, values: torch.Tensor) -> None:
        if not self.valid:
            raise SegmentStateError("the shard has no base to decode against; exchange plain values, then refresh")
        to, fixed = self._pointer(values), self._places.fixed_bytes
        first = received.first
        if first.numel() < fixed or not first.is_contiguous():
            raise ValueError(f"{first.numel()} bytes arrived at once, of which {fixed} have one size at each gather")
        self.valid = False
        at = first.data_ptr()
        if fixed + variable_bytes <= first.numel():
            variable, whole = at + fixed, first
        else:
            whole = received.part(fixed, variable_bytes)
            variable = whole.data_ptr()
        with self._workspace.borrow(self._scratch_bytes) as scratch:
            inputs = at + HEADER_BYTES, at, variable, variable_bytes
            wrong = self._c["decode"](*self._kind, *self._all, *inputs, to, scratch.data_ptr(), self._fault.ctypes.data)
        del whole
        if wrong:
            self._raise(wrong)
        self.valid = True

    def refresh(self, values: torch.Tensor) -> None:
        self._refresh(values, SETTINGS.index("delta"))

    def reset(self) -> None:
        self.valid = False

    def _raise(self, wrong: int) -> None:
        if wrong == _NO_MEMORY:
            raise MemoryError("no memory to decode a shard's segments")
        row, found, expected = self._fault.tolist()
        segment = int(np.searchsorted(self._coded, row))
        if wrong in _RECORD_FAULTS:
            raise CodedDataError(_RECORD_FAULTS[wrong].format(segment=segment, found=found, expected=expected))
        raise SegmentFaultError(segment, _SEGMENT_FAULTS[wrong].format(found=found, expected=expected))
