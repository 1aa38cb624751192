"""Coding one segment of a shard against what its receivers hold, in two phases: encode, then commit or abort.

A sender's state says what every receiver's cache holds. ``encode`` never changes it; ``commit`` does,
once the gather that carried the payload is complete on this rank. So a gather that fails leaves the
state at what the receivers were last known to hold, or, after ``reset``, at nothing at all, and then
nothing can be coded until plain values have been exchanged (``refresh``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch

from ciera_piper_core.exponents.bitmap import read_bitmap, write_bitmap
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.kernels import BLOCKS, DEFAULT_BLOCK
from ciera_piper_core.exponents.mode_choice import Sampled
from ciera_piper_core.exponents.payload import CODINGS, Coding, FixedArea, SegmentRecord
from ciera_piper_core.exponents.workspace import Workspace

if TYPE_CHECKING:
    from ciera_piper_core.exponents.backend import Backend
    from ciera_piper_core.exponents.layout import FloatLayout

__all__ = ["CodingSettings", "Mode", "SegmentDecoder", "SegmentEncoder", "SegmentRecord", "SegmentStateError"]

Mode = Literal["block", "delta", "auto"]


class SegmentStateError(RuntimeError):
    """Encode, decode, commit or abort at a time when there is nothing to do it with."""


@dataclass(frozen=True)
class CodingSettings:
    """How changed exponents are coded.

    Attributes:
        mode: ``block``: the changed blocks' exponents (the paper's way; the sender keeps hashes only);
            ``delta``: their differences to the previous ones, which the sender keeps too (S_e bytes);
            ``auto``: whichever is smaller, at every gather.
        block: values in a block.

    Raises:
        ValueError: another mode or block.
    """

    mode: Mode = "auto"
    block: int = DEFAULT_BLOCK

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"unknown coding mode {self.mode!r}; known: {', '.join(get_args(Mode))}")
        if self.block not in BLOCKS:
            raise ValueError(f"blocks of {self.block} values; possible: {', '.join(map(str, BLOCKS))}")


@dataclass(frozen=True)
class _Pending:
    """What an encode found, until it is committed: flags of changed blocks and their symbols (pool buffers)."""

    mode: Coding
    count: int
    changed: torch.Tensor
    symbols: torch.Tensor | None


class SegmentEncoder:
    """The sender's side of one segment.

    Not for several threads at once; different encoders may run on different threads, with one workspace.

    Args:
        values: in the segment.
        layout: of the values.
        settings: see :class:`CodingSettings`.
        backend: its kernels and coder.
        device: of the values and of the state.
        workspace: scratch, shared with others; one of its own by default.
    """

    def __init__(
        self,
        values: int,
        layout: FloatLayout,
        settings: CodingSettings,
        backend: Backend,
        device: torch.device | str = "cpu",
        workspace: Workspace | None = None,
    ) -> None:
        self.values, self.layout, self.settings, self.backend = values, layout, settings, backend
        self.area = FixedArea.of(values, layout, settings.block)
        self.valid = False
        self._workspace = workspace or Workspace(device)
        self._pending: _Pending | None = None
        # A frequency table for each way of coding; the coder keeps them by these keys.
        self._table_keys = {coding: _TableKey() for coding in CODINGS}
        self._hashes = self._new_hashes = self._previous = torch.empty(0, dtype=torch.uint8, device=device)
        if settings.mode == "block":
            self._hashes = torch.empty(self.area.blocks, 2, dtype=torch.int64, device=device)
            self._new_hashes = torch.empty_like(self._hashes)
        else:
            self._previous = torch.empty(layout.exponent_bytes(values), dtype=torch.uint8, device=device)

    @property
    def fixed_bytes(self) -> int:
        """Of the fixed area: bitmap and rest, each at a multiple of 16 bytes."""
        return self.area.size

    @property
    def variable_bound(self) -> int:
        """Most bytes of coded exponents."""
        return self.backend.coder.bound(self.values, self.layout.exponent_bits)

    @property
    def state_bytes(self) -> int:
        """Bytes that are kept between gathers."""
        return sum(state.numel() * state.element_size() for state in (self._hashes, self._new_hashes, self._previous))

    def encode(self, values: torch.Tensor, fixed: torch.Tensor, variable: torch.Tensor) -> SegmentRecord:
        """Code the values against the committed state; neither they nor the state change.

        Args:
            values: of the layout's type, or integers of its width, contiguous.
            fixed: uint8 ``[fixed_bytes]``, written.
            variable: uint8, ``variable_bound`` bytes or more; as many are written as the record says.

        Raises:
            SegmentStateError: no base to code against (``refresh`` first), or an earlier encode is
                neither committed nor aborted.
            ValueError: a tensor of another type or size.
        """
        if not self.valid:
            raise SegmentStateError("the segment has no base to code against; exchange plain values, then refresh")
        if self._pending is not None:
            raise SegmentStateError("the segment's last encode was neither committed nor aborted")
        bits = _segment_bits(values, self.layout, self.values)
        if fixed.numel() != self.fixed_bytes:
            raise ValueError(f"the fixed area has {fixed.numel()} bytes, {self.fixed_bytes} are needed")
        if variable.numel() < self.variable_bound:
            raise ValueError(f"the variable area has {variable.numel()} bytes, {self.variable_bound} may be needed")
        changed_buffer = self._workspace.take(self.area.blocks)
        symbols_buffer: torch.Tensor | None = None
        try:
            changed = changed_buffer[: self.area.blocks]
            checksum = self._scan(bits, fixed, changed)
            changed_blocks = write_bitmap(changed, self.area.bitmap(fixed))
            self.area.clear_padding(fixed)
            count = _symbols_in(changed, changed_blocks, self.values, self.settings.block)
            mode: Coding = "block" if self.settings.mode == "block" else "delta"
            size = 0
            if count:
                mode = self._choose(bits, changed, changed_blocks)
                symbols_buffer = self._workspace.take(count)
                symbols = symbols_buffer[:count]
                previous = self._previous if mode == "delta" else None
                self.backend.kernels.collect(bits, self.layout, self.settings.block, changed, previous, symbols)
                size = self.backend.coder.encode(symbols, self.layout.exponent_bits, variable, self._table_keys[mode])
        except BaseException:
            self._give(changed_buffer, symbols_buffer)
            raise
        if self.settings.mode == "block" and symbols_buffer is not None:
            # Hashes alone advance; the symbols are not needed again.
            self._workspace.give(symbols_buffer)
            symbols_buffer = None
        self._pending = _Pending(mode, count, changed_buffer, symbols_buffer)
        return SegmentRecord(mode, changed_blocks, count, size, checksum)

    def commit(self) -> None:
        """The receivers hold what was encoded: advance the state to it.

        Raises:
            SegmentStateError: nothing was encoded since the last commit.
        """
        pending = self._take_pending("commit")
        self.valid = False
        try:
            if self.settings.mode == "block":
                self._hashes, self._new_hashes = self._new_hashes, self._hashes
            elif pending.symbols is not None:
                self.backend.kernels.apply(
                    pending.symbols[: pending.count],
                    self.layout,
                    self.values,
                    self.settings.block,
                    pending.changed[: self.area.blocks],
                    pending.mode == "delta",
                    self._previous,
                )
            self.valid = True
        finally:
            self._give(pending.changed, pending.symbols)

    def abort(self) -> None:
        """Forget what was encoded; the state stays. Nothing to forget is no error."""
        if self._pending is not None:
            pending = self._take_pending("abort")
            self._give(pending.changed, pending.symbols)

    def refresh(self, values: torch.Tensor) -> None:
        """The receivers were given these values plain: they are the base now."""
        self.reset()
        bits = _segment_bits(values, self.layout, self.values)
        if self.settings.mode == "block":
            self.backend.kernels.hash_blocks(bits, self.layout, self.settings.block, self._hashes)
        else:
            with self._workspace.borrow(self.area.rest_bytes) as rest:
                self.backend.kernels.split(bits, self.layout, self._previous, rest)
        self.valid = True

    def reset(self) -> None:
        """What the receivers hold is no longer known (checkpoint loaded, gather lost): no base until a refresh."""
        self.abort()
        self.valid = False

    def _scan(self, bits: torch.Tensor, fixed: torch.Tensor, changed: torch.Tensor) -> int:
        kernels, rest = self.backend.kernels, self.area.rest(fixed)
        if self.settings.mode == "block":
            return kernels.scan_hashed(
                bits, self.layout, self.settings.block, self._hashes, self._new_hashes, rest, changed
            )
        return kernels.scan_exact(bits, self.layout, self.settings.block, self._previous, rest, changed)

    def _choose(self, bits: torch.Tensor, changed: torch.Tensor, changed_blocks: int) -> Coding:
        if self.settings.mode != "auto":
            return self.settings.mode
        sampled = Sampled(self.backend.kernels, self._workspace, self.layout, self.settings.block)
        return sampled.smaller_coding(bits, changed, changed_blocks, self._previous)

    def _take_pending(self, act: str) -> _Pending:
        if self._pending is None:
            raise SegmentStateError(f"{act}: nothing was encoded since the last commit or abort")
        pending, self._pending = self._pending, None
        return pending

    def _give(self, *buffers: torch.Tensor | None) -> None:
        for buffer in buffers:
            if buffer is not None:
                self._workspace.give(buffer)


class SegmentDecoder:
    """The receiver's side of one segment of one other rank: its last exponents.

    Args:
        values: in the segment.
        layout: of the values.
        block: values in a block, as the sender has it.
        backend: its kernels and coder; the coder's format is the sender's.
        device: of the cache.
        workspace: scratch, shared with others; one of its own by default.
    """

    def __init__(
        self,
        values: int,
        layout: FloatLayout,
        block: int,
        backend: Backend,
        device: torch.device | str = "cpu",
        workspace: Workspace | None = None,
    ) -> None:
        self.values, self.layout, self.block, self.backend = values, layout, block, backend
        self.area = FixedArea.of(values, layout, block)
        self.valid = False
        self._workspace = workspace or Workspace(device)
        self._exponents = torch.empty(layout.exponent_bytes(values), dtype=torch.uint8, device=device)

    @property
    def state_bytes(self) -> int:
        """Bytes that are kept between gathers (S_e)."""
        return self._exponents.numel()

    def decode(
        self, record: SegmentRecord, fixed: torch.Tensor, variable: torch.Tensor, values_out: torch.Tensor
    ) -> None:
        """Rebuild the segment's values and remember their exponents.

        Args:
            record: of the segment.
            fixed: uint8 ``[fixed area]``.
            variable: uint8, begins with the segment's coded exponents; longer is no error.
            values_out: of the layout's type, or integers of its width, contiguous; written. Worth
                nothing if this raises.

        Raises:
            SegmentStateError: no base to decode against.
            CodedDataError: not what the encoder wrote, or the values' checksum differs. The cache is
                then invalid, until a refresh.
            ValueError: a tensor of another type or size; the cache is as it was.
        """
        if not self.valid:
            raise SegmentStateError("the segment has no base to decode against; exchange plain values, then refresh")
        bits = _segment_bits(values_out, self.layout, self.values)
        if fixed.numel() != self.area.size:
            raise ValueError(f"the fixed area has {fixed.numel()} bytes, {self.area.size} are needed")
        self.valid = False
        with self._workspace.borrow(self.area.blocks) as changed:
            self._update(record, fixed, variable, changed)
        checksum = self.backend.kernels.merge_checked(
            self._exponents, self.area.rest(fixed), self.layout, self.block, bits
        )
        if checksum != record.checksum:
            raise CodedDataError(
                f"the rebuilt values have checksum {checksum:016x}, the sender's have {record.checksum:016x}"
            )
        self.valid = True

    def refresh(self, values: torch.Tensor) -> None:
        """The sender gave these values plain: their exponents are the base now."""
        self.valid = False
        bits = _segment_bits(values, self.layout, self.values)
        with self._workspace.borrow(self.area.rest_bytes) as rest:
            self.backend.kernels.split(bits, self.layout, self._exponents, rest)
        self.valid = True

    def reset(self) -> None:
        """Forget the base; nothing can be decoded until a refresh."""
        self.valid = False

    def _update(
        self, record: SegmentRecord, fixed: torch.Tensor, variable: torch.Tensor, changed: torch.Tensor
    ) -> None:
        """Bring the cached exponents to the sender's."""
        changed_blocks = read_bitmap(self.area.bitmap(fixed), changed)
        if changed_blocks != record.changed_blocks:
            raise CodedDataError(f"the bitmap marks {changed_blocks} blocks, the record {record.changed_blocks}")
        if record.variable_bytes > variable.numel():
            raise CodedDataError(f"{record.variable_bytes} coded bytes are announced, {variable.numel()} are there")
        count = _symbols_in(changed, changed_blocks, self.values, self.block)
        if record.symbols not in (-1, count):
            raise CodedDataError(f"the record counts {record.symbols} symbols, the marked blocks hold {count}")
        if not count:
            if record.variable_bytes:
                raise CodedDataError(f"{record.variable_bytes} coded bytes for no changed block")
            return
        with self._workspace.borrow(count) as symbols:
            self.backend.coder.decode(variable[: record.variable_bytes], self.layout.exponent_bits, symbols)
            self.backend.kernels.apply(
                symbols, self.layout, self.values, self.block, changed, record.mode == "delta", self._exponents
            )


class _TableKey:
    """A key of its own for a coder's frequency table; a coder may hold it weakly."""


def _symbols_in(changed: torch.Tensor, changed_blocks: int, values: int, block: int) -> int:
    """Values in the changed blocks; the last block may be short."""
    if not changed_blocks:
        return 0
    missing = -values % block
    return changed_blocks * block - (missing if missing and int(changed[-1]) else 0)


def _segment_bits(values: torch.Tensor, layout: FloatLayout, expected: int) -> torch.Tensor:
    bits = layout.bits(values)
    if bits.numel() != expected:
        raise ValueError(f"{bits.numel()} values, where the segment has {expected}")
    return bits
