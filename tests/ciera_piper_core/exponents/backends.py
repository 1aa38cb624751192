"""Every backend and instruction level, for tests that hold all of them to the same things."""

from __future__ import annotations

import pytest

from ciera_piper_core.exponents.backend import Backend, BackendUnavailableError, backend
from ciera_piper_core.exponents.native.library import ISA_LEVELS

VARIANTS = ("reference", *(f"native-{isa}" for isa in ISA_LEVELS), "triton", "nvcomp")
"""The backends, those of the CPU once for each of its instruction levels."""


def build(variant: str, threads: int = 1) -> Backend:
    """The backend of that name; skips the test, with the reason, if it does not run here."""
    name, _, isa = variant.partition("-")
    try:
        return backend(name, isa or None, threads)
    except (BackendUnavailableError, ValueError) as error:
        pytest.skip(str(error))
