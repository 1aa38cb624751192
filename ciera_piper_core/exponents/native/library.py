"""Loads the compiled C library, and says which instruction levels run here."""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
from functools import cache
from pathlib import Path
from typing import Any

ISA_LEVELS = ("scalar", "avx2", "avx512")
"""By rank; an index is the level's number in the C sources (``isa.h``)."""

NAME = "_kernels"
"""Of the library's file, without its suffix."""

ISA_VARIABLE = "CIERA_ISA"
"""Environment variable that holds the native kernels to a lower level, for tests and for comparisons."""


class NativeUnavailableError(RuntimeError):
    """The C library was not built, or not for this machine; the message says what to do."""


@cache
def load() -> ctypes.CDLL:
    """The library, which the package's build compiled.

    Calls through it release the GIL.

    Raises:
        NativeUnavailableError: it is not there, or cannot be loaded.
    """
    folder = Path(__file__).parent
    candidates = [folder / f"{NAME}{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise NativeUnavailableError(
            "the native kernels were not built; install a C compiler (Debian: apt install gcc libc6-dev python3-dev), "
            "then install this package again (pip install .)"
        )
    try:
        return ctypes.CDLL(str(found))
    except OSError as error:
        raise NativeUnavailableError(f"{found} cannot be loaded: {error}; install this package again") from None


def function(symbol: str) -> Any:
    """A function of the library; its argument types are for the caller to set.

    Raises:
        NativeUnavailableError: see :func:`load`; or the library was built from other sources, and has none such.
    """
    library = load()
    try:
        return getattr(library, symbol)
    except AttributeError:
        raise NativeUnavailableError(
            f"the native kernels were built from other sources ({NAME} has no {symbol}); install this package again "
            "(pip install .), or build a source tree in place again: "
            "python -c 'from setuptools import setup; setup()' build_ext --inplace"
        ) from None


@cache
def best_isa() -> str:
    """The highest instruction level of this processor.

    Raises:
        NativeUnavailableError: see :func:`load`.
    """
    level: int = function("ciera_planes_best_isa")()
    return ISA_LEVELS[level]


def available_isas() -> tuple[str, ...]:
    """Every instruction level that runs here, lowest first; empty if the library was not built."""
    try:
        return ISA_LEVELS[: ISA_LEVELS.index(best_isa()) + 1]
    except NativeUnavailableError:
        return ()


def chosen_isa(asked: str | None = None) -> str:
    """The level to run at: ``asked``, else the environment's ``CIERA_ISA``, else the best.

    Raises:
        ValueError: an unknown level, or one that this processor has not.
        NativeUnavailableError: see :func:`load`.
    """
    wanted = asked or os.environ.get(ISA_VARIABLE) or best_isa()
    if wanted not in ISA_LEVELS:
        raise ValueError(f"unknown instruction level {wanted!r}; known: {', '.join(ISA_LEVELS)}")
    if ISA_LEVELS.index(wanted) > ISA_LEVELS.index(best_isa()):
        raise ValueError(f"this processor has no {wanted}; the best that it has is {best_isa()}")
    return wanted
