"""Stands in for ``nvidia.nvcomp`` where there is no GPU: the same calls, as strict, on tensors of the CPU.

What it codes with is zlib. Like nvCOMP it refuses unknown options, misaligned or empty buffers, a codec
of another thread and bytes that it did not write; it hands out signed bytes, and fills what its format
leaves open with whatever comes.
"""

from __future__ import annotations

import os
import threading
import zlib
from dataclasses import dataclass
from typing import Any

import torch

ALIGNMENT = 16
OPTIONS = {"algorithm", "data_type", "device_id", "cuda_stream", "uncomp_chunk_size"}


@dataclass
class Array:
    """A buffer that was wrapped or made."""

    tensor: torch.Tensor

    def __dlpack__(self, **options: Any) -> object:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> object:
        return self.tensor.__dlpack_device__()

    @property
    def content(self) -> bytes:
        return bytes(self.tensor.view(torch.uint8).tolist())


def as_array(source: torch.Tensor, cuda_stream: int = 0) -> Array:
    if not source.is_contiguous() or not source.numel():
        raise RuntimeError("the buffer is empty or not contiguous")
    return Array(source)


class Codec:
    """ANS by name."""

    built = 0

    def __init__(self, **options: Any) -> None:
        for name in options:
            if name not in OPTIONS:
                raise ValueError(f'Unsupported argument: "{name}".')
        if options["algorithm"] != "ANS":
            raise ValueError(f'Unknown algorithm: "{options["algorithm"]}".')
        assert options["data_type"] == "|u1"
        self._thread = threading.get_ident()
        type(self).built += 1

    def encode(self, array: Array) -> Array:
        self._check(array)
        coded = zlib.compress(array.content, 1)
        head = array.tensor.numel().to_bytes(8, "little") + len(coded).to_bytes(8, "little")
        return _made(b"nvc-" + head + coded + os.urandom(-len(coded) % 4))

    def get_uncomp_buffer_size(self, array: Array) -> int:
        self._check(array)
        if array.content[:4] != b"nvc-":
            raise RuntimeError("nvCOMP: not a header of nvCOMP")
        return int.from_bytes(array.content[4:12], "little")

    def decode(self, array: Array, data_type: str = "") -> Array:
        size = self.get_uncomp_buffer_size(array)
        length = int.from_bytes(array.content[12:20], "little")
        if length > len(array.content) - 20:
            raise RuntimeError("nvCOMP: the buffer is too short")
        try:
            content = zlib.decompress(array.content[20 : 20 + length])
        except zlib.error as error:
            raise RuntimeError(f"nvCOMP: {error}") from None
        # nvCOMP trusts its header: what is missing stays as it was in memory.
        return _made((content + bytes(size))[:size])

    def _check(self, array: Array) -> None:
        assert threading.get_ident() == self._thread, "a codec belongs to one thread"
        if array.tensor.data_ptr() % ALIGNMENT:
            raise RuntimeError("nvCOMP: misaligned buffer")


def _made(content: bytes) -> Array:
    return Array(torch.frombuffer(bytearray(content), dtype=torch.int8))
