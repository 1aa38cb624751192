"""What the C library exports: results and arguments of each function. Imports no torch, so the doctor may look."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

from ciera_piper_core.exponents.native.library import function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_POINTER, _SIZE, _FLAG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_NUMBER, _BITS, _SYMBOL = ctypes.c_uint64, ctypes.c_uint, ctypes.c_uint8
_ISA_AND_TYPE = (ctypes.c_int, ctypes.c_int)

_PLANES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "split": (None, (_POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _FLAG)),
    "merge": (None, (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _FLAG)),
    "merge_checked": (_NUMBER, (_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _NUMBER, _POINTER, _FLAG)),
    "hash": (None, (_POINTER, _SIZE, _SIZE, _POINTER)),
    "scan_hashed": (_NUMBER, (_POINTER, _SIZE, _SIZE, _NUMBER, *[_POINTER] * 5, _FLAG)),
    "scan_exact": (_NUMBER, (_POINTER, _SIZE, _SIZE, _NUMBER, *[_POINTER] * 4, _FLAG)),
    "collect": (_SIZE, (_POINTER, _SIZE, _SIZE, *[_POINTER] * 3)),
    "apply": (_SIZE, (_POINTER, _SIZE, _SIZE, _POINTER, _FLAG, _POINTER)),
}
"""Results and arguments after the first two of the functions in planes.h."""

_RANS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "count": (None, (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER)),
    "build_table": (_SIZE, (_POINTER, _FLAG, _POINTER)),
    "cost": (_NUMBER, (_POINTER, _POINTER, _SIZE)),
    "constant": (_FLAG, (_POINTER, _SIZE)),
    "pack5": (_BITS, (_POINTER, _SIZE, _POINTER)),
    "unpack5": (_BITS, (_POINTER, _SIZE, _POINTER)),
    "scratch_bytes": (_SIZE, ()),
    "encode": (ctypes.c_int64, (_FLAG, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE, *[_POINTER] * 4)),
    "decode": (
        _FLAG,
        (_FLAG, _POINTER, _SIZE, _BITS, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE),
    ),
    "encode_stream": (ctypes.c_int64, (_FLAG, _POINTER, _SIZE, _BITS, _POINTER, _POINTER, _BITS)),
    "decode_stream": (_FLAG, (_FLAG, _POINTER, _SIZE, _BITS, _POINTER, _SIZE, _BITS)),
    "split_sparse": (_SIZE, (_FLAG, _POINTER, _SIZE, _SYMBOL, _POINTER, _POINTER)),
    "merge_sparse": (_FLAG, (_FLAG, _POINTER, _SIZE, _SYMBOL, _POINTER, _SIZE, _POINTER)),
}
"""Results and arguments of the functions in rans.h; the C sources say what they read and write."""

_SEGMENTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "struct_bytes": (_SIZE, ()),
    "scratch_bytes": (_NUMBER, (_POINTER, _SIZE, _SIZE)),
    "refresh_bytes": (_NUMBER, (_FLAG, _POINTER, _SIZE)),
    "encode": (ctypes.c_int64, (*_ISA_AND_TYPE, _SIZE, _FLAG, _POINTER, _SIZE, *[_POINTER] * 5)),
    "commit": (None, (*_ISA_AND_TYPE, _SIZE, _FLAG, _POINTER, _SIZE)),
    "refresh": (None, (*_ISA_AND_TYPE, _SIZE, _FLAG, _POINTER, _SIZE, _POINTER, _POINTER)),
    "decode": (
        _FLAG,
        (*_ISA_AND_TYPE, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER),
    ),
}
"""Results and arguments of the functions in segments.h; the C sources say what they read and write."""


@cache
def planes_functions() -> Mapping[str, Callable[..., Any]]:
    """The functions of planes.h by name, without their prefix.

    Raises:
        NativeUnavailableError: not built, or built from other sources.
    """
    return _bound("planes", {name: (result, (*_ISA_AND_TYPE, *rest)) for name, (result, rest) in _PLANES.items()})


@cache
def rans_functions() -> Mapping[str, Callable[..., Any]]:
    """The functions of rans.h by name, without their prefix.

    Raises:
        NativeUnavailableError: not built, or built from other sources.
    """
    return _bound("rans", _RANS)


@cache
def segments_functions() -> Mapping[str, Callable[..., Any]]:
    """The functions of segments.h by name, without their prefix.

    Raises:
        NativeUnavailableError: not built, or built from other sources.
    """
    return _bound("segments", _SEGMENTS)


def _bound(part: str, signatures: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> dict[str, Callable[..., Any]]:
    bound = {}
    for name, (result, arguments) in signatures.items():
        bound[name] = found = function(f"ciera_{part}_{name}")
        found.restype, found.argtypes = result, arguments
    return bound
