"""Numbers of GPUs and sizes as people type them: 64KiB:4GiB doubles, a comma lists."""

from __future__ import annotations

import re

from ciera_piper_core.models.wording import shorten
from ciera_piper_core.planner.strategy import doubling

FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
MOST_BYTES = 1 << 50
MOST_GPUS = 1 << 20

_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,12}))? ?([A-Za-z]*)", re.ASCII)


def parse_gpus(text: str) -> tuple[int, ...]:
    """Numbers from ``8``, ``2:4096`` (doubling, always ending with its last) or a list of these, ascending, each once.

    Raises:
        ValueError: none of these, or a number that is out of range.
    """
    counts: set[int] = set()
    for part in text.split(","):
        try:
            counts.update(doubling(_within(part.strip(), MOST_GPUS)))
        except ValueError:
            raise ValueError(
                f"--gpus takes numbers from 1 to {MOST_GPUS}, ranges such as 2:4096, or a list of both,"
                f" not {shorten(text)!r}"
            ) from None
    if min(counts) < 1:
        raise ValueError(f"--gpus takes numbers from 1 up, not {shorten(text)!r}")
    return tuple(sorted(counts))


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes from ``1MiB``, ``64KiB:4GiB`` (doubling, always ending with its last) or a list of these, likewise.

    Raises:
        ValueError: none of these, or a size that is out of range.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        ends = [parse_size(end.strip()) for end in part.split(":")]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise ValueError(f"--bytes: {shorten(part)!r} is no size and no range such as 64KiB:4GiB")
        sizes.update(doubling(":".join(map(str, ends))))
    return tuple(sorted(sizes))


def parse_size(text: str) -> int:
    """Bytes from ``4096``, ``1MiB`` (1,048,576) or ``1MB`` (1,000,000).

    Raises:
        ValueError: no size, ambiguous, no whole number of bytes, or out of range.
    """
    match = _SIZE.fullmatch(text)
    unit = match[3].upper() if match else ""
    if match and unit in ("K", "M", "G", "T"):
        raise ValueError(f"--bytes: {text!r} is ambiguous; write {unit}iB (powers of 1024) or {unit}B (of 1000)")
    if match is None or unit not in FACTORS:
        raise ValueError(f"--bytes: {shorten(text)!r} is no size; write bytes (4096), 1MiB or 1MB")
    decimals = match[2] or ""
    scaled, rest = divmod(int(match[1] + decimals) * FACTORS[unit], int(10 ** len(decimals)))
    if rest or not 1 <= scaled <= MOST_BYTES:
        raise ValueError(f"--bytes: {text!r} is no whole number of bytes from 1 to 1 PiB")
    return scaled


def _within(text: str, most: int) -> str:
    """``text``, if none of its numbers is above ``most``."""
    if any(len(part) > 12 or (part.isdigit() and int(part) > most) for part in text.split(":")):
        raise ValueError(text)
    return text
