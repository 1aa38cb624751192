"""Backends by name: which kernels and which coder, whether they run here, and if not, why."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.exponents.host_coder import HostCoder
from ciera_piper_core.exponents.reference import ReferenceKernels
from ciera_piper_core.exponents.self_check import check_backend

if TYPE_CHECKING:
    from ciera_piper_core.exponents.coding import Coder
    from ciera_piper_core.exponents.kernels import Kernels

BACKENDS = ("reference", "native", "triton", "nvcomp")


class BackendUnavailableError(RuntimeError):
    """A backend that does not run here; the message says why, and what to do."""


@dataclass(frozen=True)
class Backend:
    """Kernels and an entropy coder that work on the same device.

    Attributes:
        name: see ``BACKENDS``.
        isa: instruction level of native kernels; "" elsewhere.
        threads: that kernels and coder use for large inputs.
        whole_shards: all segments of a shard are done in one call, which is for one thread (``segments.py``).
    """

    name: str
    kernels: Kernels
    coder: Coder
    isa: str = ""
    threads: int = 1
    whole_shards: bool = False


def backend(name: str, isa: str | None = None, threads: int = 1) -> Backend:
    """A backend, checked against ``reference`` on a small input the first time that it is built in a process.

    Args:
        isa: instruction level of ``native``: scalar, avx2 or avx512; the best of this processor by default.
        threads: for large inputs, on the CPU.

    Raises:
        ValueError: an unknown name, a level that does not run here, or less than one thread.
        BackendUnavailableError: it does not run here.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")
    if threads < 1:
        raise ValueError(f"{threads} threads; at least 1 is needed")
    if isa is not None and name != "native":
        raise ValueError(f"backend {name} has no instruction levels; only native has")
    try:
        built = _built(name, isa, threads)
        _checked(name, built.isa)
    except (ImportError, RuntimeError, OSError) as error:
        raise BackendUnavailableError(f"backend {name} does not run here: {error}") from error
    return built


def available() -> dict[str, str]:
    """Every backend, with "" if it runs here, else the reason why not."""
    reasons = {}
    for name in BACKENDS:
        try:
            backend(name)
        except BackendUnavailableError as error:
            reasons[name] = str(error.__cause__)
        else:
            reasons[name] = ""
    return reasons


def default_backend(device: torch.device | str = "cpu", threads: int = 1) -> Backend:
    """The fastest backend that runs on tensors of this device; ``reference`` always does.

    It is hundreds of times slower than others, so it serves with a RuntimeWarning that says why.
    """
    order = ("nvcomp", "triton") if torch.device(device).type == "cuda" else ("native",)
    reasons = []
    for name in order:
        try:
            return backend(name, threads=threads)
        except BackendUnavailableError as error:
            reasons.append(str(error))
    warnings.warn(f"{'; '.join(reasons)}; reference serves, which is slow", RuntimeWarning, stacklevel=2)
    return backend("reference", threads=threads)


@cache
def _checked(name: str, isa: str) -> None:
    """Once for each backend and level; a failure is an exception, which the cache does not keep."""
    check_backend(_built(name, isa or None, threads=1))


def _built(name: str, isa: str | None, threads: int) -> Backend:
    """Each import is here, since each may miss a compiler, a package or a device."""
    if name == "reference":
        return Backend(name, ReferenceKernels(), HostCoder(_reference_coder()), threads=threads)
    if name == "native":
        from ciera_piper_core.exponents.native.functions import segments_functions
        from ciera_piper_core.exponents.native.library import chosen_isa
        from ciera_piper_core.exponents.native.planes import NativeKernels

        level = chosen_isa(isa)
        segments_functions()
        kernels, coder = NativeKernels(level, threads), _native_coder(level, threads)
        return Backend(name, kernels, coder, level, threads, whole_shards=threads == 1)
    from ciera_piper_core.exponents.triton import TritonKernels

    if name == "nvcomp":
        from ciera_piper_core.exponents.nvcomp import NvcompCoder

        return Backend(name, TritonKernels(), NvcompCoder(), threads=threads)
    return Backend(name, TritonKernels(), HostCoder(_host_coder(threads)), threads=threads)


def _host_coder(threads: int) -> Coder:
    """The best coder of the host's memory."""
    from ciera_piper_core.exponents.native.library import NativeUnavailableError, chosen_isa

    try:
        return _native_coder(chosen_isa(), threads)
    except (ImportError, NativeUnavailableError):
        return _reference_coder()


def _native_coder(isa: str, threads: int) -> Coder:
    from ciera_piper_core.exponents.native.rans import NativeCoder

    return NativeCoder(isa, threads)


def _reference_coder() -> Coder:
    from ciera_piper_core.exponents.rans.reference import ReferenceCoder

    return ReferenceCoder()
