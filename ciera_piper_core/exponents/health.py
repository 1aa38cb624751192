"""What a user should know of the native kernels on this machine: whether they were built, and what they can use."""

from __future__ import annotations

import os

from ciera_piper_core.exponents.native.functions import planes_functions, rans_functions, segments_functions
from ciera_piper_core.exponents.native.library import (
    ISA_VARIABLE,
    NativeUnavailableError,
    available_isas,
    best_isa,
    chosen_isa,
)

NAME = "native kernels"
SERVES = "the reference backend serves, hundreds of times slower"
BUILD_AGAIN = "with a C compiler at hand: pip install --force-reinstall --no-deps ."


def checks() -> list[dict[str, str]]:
    """One check, as a mapping of ``name status found fix``. Imports no torch, and runs no kernel."""
    try:
        planes_functions()
        rans_functions()
        segments_functions()
        best_isa()
    except NativeUnavailableError as error:
        reason = str(error).partition(";")[0]
        return [{"name": NAME, "status": "missing", "found": f"{reason}; {SERVES}", "fix": BUILD_AGAIN}]
    levels = ", ".join(reversed(available_isas()))
    try:
        used = chosen_isa()
    except ValueError as error:
        return [{"name": NAME, "status": "warn", "found": f"{error} ({ISA_VARIABLE})", "fix": f"unset {ISA_VARIABLE}"}]
    if used != best_isa():
        found = f"{ISA_VARIABLE}={os.environ[ISA_VARIABLE]} holds them to {used}; this processor has {levels}"
        return [{"name": NAME, "status": "warn", "found": found, "fix": f"unset {ISA_VARIABLE}"}]
    return [{"name": NAME, "status": "ok", "found": f"{levels} on this processor"}]
