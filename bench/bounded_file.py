"""Reads a whole file, and refuses one that has no end or would fill the memory, such as a device."""

from __future__ import annotations

import errno
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 1 << 29
"""Ten thousand cases with three hundred samples each are a tenth of that."""


def read_bounded(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: it cannot be read, or has more than ``most_bytes``.
    """
    with path.open("rb") as stream:
        return read_bounded_stream(stream, most_bytes)


def read_bounded_stream(stream: IO[bytes], most_bytes: int = MOST_BYTES) -> bytes:
    """What is left of a stream.

    Raises:
        OSError: it cannot be read, or has more than ``most_bytes``.
    """
    data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has no end, or more than {most_bytes >> 20} MiB")
    return data
