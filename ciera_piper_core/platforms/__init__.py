"""Machines that a plan is made for: built-in specifications, and profiles that were measured."""

from __future__ import annotations

from pathlib import Path

from ciera_piper_core.platforms import profile, specification
from ciera_piper_core.platforms.platform import DEFAULT_DTYPE, Platform, Term, dtype_name
from ciera_piper_core.platforms.specification import names

__all__ = ["Platform", "Term", "load_platform", "names"]


def load_platform(text: str, dtype: str | None = None) -> Platform:
    """The platform that a user means.

    Args:
        text: name of a built-in specification, or path of a profile that ``bench characterize`` wrote.
        dtype: that is computed in, ``bfloat16`` (or ``bf16``), ``float16`` or ``float32``; None for
            bfloat16, or what a profile has instead.

    Raises:
        ValueError: neither, or a profile that cannot be used; the message says what to run.
    """
    wanted = None if dtype is None else dtype_name(dtype)
    if text in names():
        return specification.load(text, wanted or DEFAULT_DTYPE)
    path = Path(text)
    if path.is_dir():
        path /= "profile.json"
    if path.suffix == ".toml":
        raise ValueError(
            f"{text!r} is a machine file, which `bench simulate` takes: it describes nodes and network, and not what"
            f" one GPU computes and holds; a plan takes a built-in platform ({', '.join(names())}) or a profile of"
            " `bench characterize`"
        )
    if path.exists():
        return profile.load(path, wanted)
    raise ValueError(
        f"{text!r} is neither a built-in platform ({', '.join(names())}) nor a profile;"
        " make one with `bench characterize --preset standard --output DIR`"
    )
