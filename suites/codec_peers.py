"""Other people's compressors of whole tensors, to measure beside ours; all from the extra ``compare``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

PEERS = ("zipnn", "zstd", "blosc2")
MODULES = {"zipnn": "zipnn", "zstd": "zstandard", "blosc2": "blosc2"}
INSTALL = "pip install 'ciera-piper-bench[compare]' -c ci/constraints.txt"

ZSTD_LEVEL = 1
"""The fastest of zstd's usual levels; higher ones gain little on weights."""

BLOSC2_LEVEL = 1


class Peer(Protocol):
    """A compressor of flat tensors."""

    keeps_input: bool
    """False if ``compress`` writes to its input, which must then be a copy."""

    def compress(self, values: torch.Tensor) -> Any:
        """Whatever the peer returns; its length in bytes is ``len``."""

    def decompress(self, coded: Any) -> Any:
        """The bytes again, in whatever holds a buffer."""


def peer_reason(name: str) -> str | None:
    """Why the peer cannot be measured here, or None."""
    if find_spec(MODULES[name]) is None:
        return f"{MODULES[name]} is not installed: {INSTALL}"
    return None


def make_peer(name: str, dtype: torch.dtype, threads: int) -> Peer:
    """The peer of that name, set up for values of ``dtype`` as its authors advise, with so many threads."""
    kinds: dict[str, type[ZipNNPeer] | type[ZstdPeer] | type[Blosc2Peer]]
    kinds = {"zipnn": ZipNNPeer, "zstd": ZstdPeer, "blosc2": Blosc2Peer}
    return kinds[name](dtype, threads)


class ZipNNPeer:
    """ZipNN: exponents apart from the rest, Huffman coded.

    It rearranges the bytes of its input in place and leaves them so (seen with 0.5.4, whatever the input's type),
    so each call needs a copy. The copy is not counted.
    """

    keeps_input = False

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        from zipnn import ZipNN

        name = str(dtype).removeprefix("torch.")
        self._zipnn = ZipNN(input_format="byte", bytearray_dtype=name, threads=threads)

    def compress(self, values: torch.Tensor) -> Any:
        return self._zipnn.compress(memoryview(_bytes_of(values)))

    def decompress(self, coded: Any) -> Any:
        return self._zipnn.decompress(coded)


class ZstdPeer:
    """zstd over the bytes as they lie."""

    keeps_input = True

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        import zstandard

        # 0 threads: on the caller's.
        self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=threads if threads > 1 else 0)
        self._decompressor = zstandard.ZstdDecompressor()

    def compress(self, values: torch.Tensor) -> Any:
        return self._compressor.compress(_bytes_of(values))

    def decompress(self, coded: Any) -> Any:
        return self._decompressor.decompress(coded)


class Blosc2Peer:
    """blosc2: bytes of values grouped by place (shuffle), then zstd: its smallest setting for weights."""

    keeps_input = True

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        import blosc2

        self._blosc2 = blosc2
        self._settings: dict[str, Any] = {
            "clevel": BLOSC2_LEVEL,
            "codec": blosc2.Codec.ZSTD,
            "filters": [blosc2.Filter.SHUFFLE],
            "filters_meta": [0],
            "typesize": dtype.itemsize,
            "nthreads": threads,
        }
        self._threads = threads

    def compress(self, values: torch.Tensor) -> Any:
        return self._blosc2.compress2(_bytes_of(values), **self._settings)

    def decompress(self, coded: Any) -> Any:
        return self._blosc2.decompress2(coded, nthreads=self._threads)


def _bytes_of(values: torch.Tensor) -> Any:
    """The tensor's memory as a numpy array of bytes; nothing is copied."""
    import torch

    return values.view(torch.uint8).numpy()
