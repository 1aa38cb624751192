"""Writes a text file so that a reader sees the old one or the whole new one, never a part."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME_SHOWN = 100
"""Characters of the name that the temporary file bears; a name may fill its whole length already."""


def write_whole(path: Path, text: str) -> None:
    """Write, fsync, rename. When it fails, nothing is left beside what was there.

    Raises:
        OSError: it cannot be written.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:NAME_SHOWN]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
