"""Makes programs of ``programs.py``: compiled for a GPU, or run by Triton's interpreter on tensors of the CPU.

Triton itself chooses one of the two for a whole process, when a function is decorated, by an
environment variable. Here both live side by side, each in a copy of the module of its own, so that a
process can hold one against the other, and no variable has to be set for the tests.
"""

from __future__ import annotations

import importlib.util
import inspect
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = "pip install 'ciera-piper-bench[gpu]'"
PROGRAMS = Path(__file__).with_name("programs.py")


@cache
def programs(interpreted: bool) -> ModuleType:
    """The module of programs; start one as Triton does: ``programs(False).merge[grid](...)``.

    Args:
        interpreted: run by the interpreter, slowly, one program after the other, on the CPU.

    Raises:
        ImportError: Triton is not installed; the message says how to.
    """
    try:
        import triton.language
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError as error:
        raise ImportError(f"the triton kernels need Triton ({error}): {INSTALL}") from error
    made = "interpreted" if interpreted else "compiled"
    spec = importlib.util.spec_from_file_location(f"{__package__}.programs_{made}", PROGRAMS)
    if spec is None or spec.loader is None:
        raise ImportError(f"{PROGRAMS} cannot be loaded; install this package again")
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(tl=triton.language, tensor=triton.language.tensor, constexpr=triton.language.constexpr)
    # Both look for this very object to know a sum; their interpreter is fast for nothing else.
    module.__dict__["added"] = triton.language.standard._sum_combine
    spec.loader.exec_module(module)
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__:
            setattr(module, name, InterpretedFunction(function) if interpreted else JITFunction(function))
    return module
