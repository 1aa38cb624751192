"""A whole tensor, coded on its own: no earlier tensor to differ from, bytes that describe themselves.

The bytes do not depend on how many threads there are, nor on the instruction level.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from ciera_piper_core.exponents.backend import BACKENDS, Backend, BackendUnavailableError, backend, default_backend
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.container_format import MOST_DIMENSIONS, ContainerFormat, Entry
from ciera_piper_core.exponents.fresh_memory import fresh_bytes
from ciera_piper_core.exponents.kernels import DEFAULT_BLOCK
from ciera_piper_core.exponents.layout import layout_of
from ciera_piper_core.exponents.payload import aligned, write_bytes
from ciera_piper_core.exponents.reference import blocks_of
from ciera_piper_core.exponents.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PART_VALUES = 1 << 20
"""Values in a part: few enough that its planes are still in a cache when they are coded, enough that the calls for a
part cost little beside its work."""

MOST_GROUP_PARTS = 8
"""Parts that follow one another on one thread, and share a frequency table while it fits them."""

LEAST_GROUPS = 4
"""Groups are smaller where there would be fewer of them, so that threads have something to share."""

_Result = TypeVar("_Result")


def compress(tensor: torch.Tensor, backend: Backend | None = None, block: int = DEFAULT_BLOCK) -> torch.Tensor:
    """Code a tensor of bf16, fp16 or fp32, of any shape, so that every bit comes back. It is not changed.

    Args:
        backend: the default one of the tensor's device if None; its threads share the work.
        block: values that a term of a checksum covers, see ``kernels.BLOCKS``.

    Returns:
        uint8, flat, on the tensor's device; at most a header and 32 bytes and a coder's framing for
        every part of ``PART_VALUES`` values larger than the tensor.

    Raises:
        ValueError: another type, a block size that there is not, or more than 255 dimensions.
    """
    layout = layout_of(tensor.dtype)
    blocks_of(0, block)
    if tensor.dim() > MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {tensor.dim()} dimensions; at most {MOST_DIMENSIONS} can be coded")
    used = backend or default_backend(tensor.device)
    described = ContainerFormat(layout, used.coder.code, tuple(tensor.shape), block, PART_VALUES)
    bits = layout.bits(tensor.detach().contiguous())
    slot = aligned(used.coder.bound(min(PART_VALUES, bits.numel()), layout.exponent_bits))
    room = described.coded_at + described.part_count * slot
    if bits.device.type != "cpu":
        on_device = torch.empty(room, dtype=torch.uint8, device=bits.device)
        return on_device[: _code(described, used, bits, on_device, slot)].clone()
    array = np.empty(room, dtype=np.uint8)
    end = _code(described, used, bits, torch.from_numpy(array), slot)
    # Shrinks in place: the pages behind the end go back to the system, and nothing is copied.
    array.resize(end, refcheck=False)
    return torch.from_numpy(array)


def decompress(coded: torch.Tensor, backend: Backend | None = None) -> torch.Tensor:
    """The tensor that :func:`compress` coded: its type, shape and bits, on the device of the bytes.

    Args:
        backend: one whose coder wrote the bytes; found if None.

    Raises:
        CodedDataError: not such bytes, or changed on the way (the values' checksums are verified).
        BackendUnavailableError: the coder that wrote them does not run here.
        ValueError: ``coded`` is not flat uint8.
    """
    if coded.dtype is not torch.uint8 or coded.dim() != 1:
        raise ValueError(f"a coded tensor is flat uint8, not {coded.dtype} of shape {tuple(coded.shape)}")
    coded = coded.contiguous()
    described, entries = ContainerFormat.parse(coded)
    used = _backend_for(described.coder_code, coded.device, backend)
    most = used.coder.bound(min(described.part_values, described.values), described.layout.exponent_bits)
    if any(entry.coded_bytes > most for entry in entries):
        raise CodedDataError(f"a part claims more than the {most} coded bytes that are possible")
    layout = described.layout
    data = fresh_bytes(described.values * layout.value_bytes, coded.device)
    bits = data.view(layout.bits_dtype)
    begins = described.coded_begins(entries)

    shared = _Shared(described, _on_one_thread(used), Workspace(coded.device))

    def decode_group(group: range) -> None:
        shared.decode_parts(group, coded, entries, begins, bits)

    _each(_groups(described.part_count), used.threads, decode_group)
    try:
        return bits.view(layout.dtype).view(described.shape)
    except (RuntimeError, TypeError):
        # No values at all, beside sizes whose product overflows.
        raise CodedDataError(f"the coded tensor names an impossible shape {list(described.shape)}") from None


def _code(described: ContainerFormat, used: Backend, bits: torch.Tensor, out: torch.Tensor, slot: int) -> int:
    """Write the container, and say where it ends; ``slot`` is the room for a part's exponents."""
    groups = _groups(described.part_count)
    shared = _Shared(described, _on_one_thread(used), Workspace(bits.device))
    entries: list[Entry] = []
    if used.threads == 1:
        for group in groups:
            entries += shared.code_parts(group, bits, out, described.coded_begins(entries)[-1])
    else:

        def code_group(group: range) -> list[Entry]:
            return shared.code_parts(group, bits, out, described.coded_at + group.start * slot)

        for of_group in _each(groups, used.threads, code_group):
            entries += of_group
        begins = described.coded_begins(entries)
        for group in groups[1:]:
            # Each group was given room for the worst case; what was not needed is closed up.
            begin, end = begins[group.start], begins[group.stop]
            _move_down(out, described.coded_at + group.start * slot, begin, end - begin)
    write_bytes(described.front_to_bytes(entries), out[: described.rest_at])
    return described.coded_begins(entries)[-1]


class _Shared:
    """Codes and decodes parts of one container; threads share it."""

    def __init__(self, described: ContainerFormat, worker: Backend, workspace: Workspace) -> None:
        most = min(described.part_values, described.values)
        self.described, self.worker, self.workspace = described, worker, workspace
        self.symbols_room = most
        self.flags = torch.ones(blocks_of(most, described.block), dtype=torch.uint8, device=workspace.device)
        self.plane_bytes = described.layout.exponent_bytes(most)

    def code_parts(self, group: range, bits: torch.Tensor, out: torch.Tensor, at: int) -> list[Entry]:
        """Code some parts: their rest in its place, their exponents one after another from ``at``."""
        layout, block, kernels = self.described.layout, self.described.block, self.worker.kernels
        entries = []
        table_key = _TableKey()
        # Never written, so that it is one page of zeros, however long it is.
        nothing = torch.zeros(self.plane_bytes, dtype=torch.uint8, device=bits.device)
        with (
            self.workspace.borrow(self.flags.numel()) as changed,
            self.workspace.borrow(self.symbols_room) as symbols,
        ):
            for index in group:
                part = self.described.part(index)
                values = bits[part.begin : part.end]
                blocks, rest_bytes = blocks_of(part.values, block), layout.rest_bytes(part.values)
                rest_end = part.rest_at + rest_bytes
                rest = out[part.rest_at : rest_end]
                # The scan is the pass that gives rest and checksum; what it compares with does not matter.
                compared = nothing[: layout.exponent_bytes(part.values)]
                checksum = kernels.scan_exact(values, layout, block, compared, rest, changed[:blocks])
                kernels.collect(values, layout, block, self.flags[:blocks], None, symbols)
                size = self.worker.coder.encode(symbols[: part.values], layout.exponent_bits, out[at:], table_key)
                _clear(out, rest_end, part.rest_at + aligned(rest_bytes))
                _clear(out, at + size, at + aligned(size))
                at += aligned(size)
                entries.append(Entry(checksum, size))
        return entries

    def decode_parts(
        self, group: range, coded: torch.Tensor, entries: Sequence[Entry], begins: Sequence[int], bits: torch.Tensor
    ) -> None:
        """Decode some parts to their place in ``bits``.

        Raises:
            CodedDataError: a part was changed.
        """
        layout, block, kernels = self.described.layout, self.described.block, self.worker.kernels
        packed = 0 if layout.exponent_bits == 8 else self.plane_bytes
        with self.workspace.borrow(self.symbols_room) as room, self.workspace.borrow(packed) as packed_room:
            for index in group:
                part, entry = self.described.part(index), entries[index]
                part_coded = coded[begins[index] : begins[index] + entry.coded_bytes]
                exponents = symbols = room[: part.values]
                self.worker.coder.decode(part_coded, layout.exponent_bits, symbols)
                if packed:
                    exponents = packed_room[: layout.exponent_bytes(part.values)]
                    flags = self.flags[: blocks_of(part.values, block)]
                    kernels.apply(symbols, layout, part.values, block, flags, False, exponents)
                rest = coded[part.rest_at : part.rest_at + layout.rest_bytes(part.values)]
                checksum = kernels.merge_checked(exponents, rest, layout, block, bits[part.begin : part.end])
                if checksum != entry.checksum:
                    raise CodedDataError(
                        f"values {part.begin} to {part.end - 1} were changed: their checksum is {checksum:016x}, "
                        f"{entry.checksum:016x} is expected"
                    )


class _TableKey:
    """A key of its own for a coder's frequency table."""


def _groups(parts: int) -> list[range]:
    """Parts in groups; the number of threads has no part in it, since the bytes must not depend on it."""
    size = max(1, min(MOST_GROUP_PARTS, parts // LEAST_GROUPS))
    return [range(first, min(first + size, parts)) for first in range(0, parts, size)]


def _each(groups: list[range], threads: int, act: Callable[[range], _Result]) -> list[_Result]:
    """Do something with each group of parts."""
    if threads == 1 or len(groups) < 2:
        return [act(group) for group in groups]
    with ThreadPoolExecutor(min(threads, len(groups))) as pool:
        return list(pool.map(act, groups))


def _on_one_thread(used: Backend) -> Backend:
    """The same backend, for parts that are themselves shared out to threads."""
    return used if used.threads == 1 else backend(used.name, used.isa or None, threads=1)


def _clear(data: torch.Tensor, begin: int, end: int) -> None:
    """Zero the padding behind a section, if there is any."""
    if begin < end:
        data[begin:end].zero_()


def _move_down(data: torch.Tensor, begin: int, to: int, size: int) -> None:
    """Move bytes to an earlier place that they may overlap."""
    if begin == to:
        return
    if data.device.type == "cpu":
        array = data.numpy()
        array[to : to + size] = array[begin : begin + size]
    else:
        data[to : to + size] = data[begin : begin + size].clone()


def _backend_for(coder_code: int, device: torch.device, asked: Backend | None) -> Backend:
    """A backend whose coder reads this format.

    Raises:
        BackendUnavailableError: none that runs here, or the one asked for does not.
    """
    first = asked or default_backend(device)
    if first.coder.code == coder_code:
        return first
    if asked is None:
        for name in BACKENDS:
            try:
                other = backend(name)
            except BackendUnavailableError:
                continue
            if other.coder.code == coder_code:
                return other
    raise BackendUnavailableError(
        f"the tensor was coded in format {coder_code}; backend {first.name} reads format {first.coder.code}"
    )
