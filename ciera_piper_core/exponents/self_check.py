"""A backend's first test on the machine that it runs on: a few hundred values through every stage, against reference.

A wrong build, driver or vendor library then makes the backend unavailable, instead of a run wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ciera_piper_core.exponents.layout import LAYOUTS
from ciera_piper_core.exponents.reference import ReferenceKernels, blocks_of

if TYPE_CHECKING:
    from ciera_piper_core.exponents.backend import Backend
    from ciera_piper_core.exponents.kernels import Kernels
    from ciera_piper_core.exponents.layout import FloatLayout

VALUES = 64 * 9 + 37
BLOCK = 64


class SelfCheckError(RuntimeError):
    """A backend that computes something else than ``reference``; never to be used."""


def check_backend(backend: Backend) -> None:
    """Run every kernel and the coder once.

    Raises:
        SelfCheckError: a stage's result differs.
    """
    device = backend_device(backend)
    for layout in LAYOUTS:
        now, before = _values(layout, shift=0), _values(layout, shift=3)
        expected = stages(ReferenceKernels(), layout, BLOCK, now, before)
        found = stages(backend.kernels, layout, BLOCK, now.to(device), before.to(device))
        for stage, tensors in expected.items():
            if not all(torch.equal(a, b.cpu()) for a, b in zip(tensors, found[stage], strict=True)):
                raise SelfCheckError(
                    f"its kernel {stage} computes something else than reference for {layout.dtype}; report this"
                )
        symbols, count = expected["collect_plain"]
        _check_coder(backend, layout, symbols[: int(count)].to(device))


def backend_device(backend: Backend) -> torch.device:
    """Where this backend's tensors live: kernels for another device than the CPU say so (``device``)."""
    return torch.device(getattr(backend.kernels, "device", "cpu"))


def stages(
    kernels: Kernels, layout: FloatLayout, block: int, now: torch.Tensor, before: torch.Tensor
) -> dict[str, list[torch.Tensor]]:
    """What each kernel makes of values and the values before them.

    Args:
        now, before: ``[n]``, integers of the value's width, on the kernels' device.

    Returns:
        kernel to its outputs, numbers as int64 ``[1]``. What a kernel must not write holds 165.
    """
    n, blocks, device = now.numel(), blocks_of(now.numel(), block), now.device

    def plane(size: int) -> torch.Tensor:
        return torch.full((size,), 165, dtype=torch.uint8, device=device)

    def number(value: int) -> torch.Tensor:
        return torch.tensor([value - 2**64 if value >= 2**63 else value])

    exponents, previous = plane(layout.exponent_bytes(n)), plane(layout.exponent_bytes(n))
    rest, rest_before, by_hash_rest, by_value_rest = (plane(layout.rest_bytes(n)) for _ in range(4))
    old, new = (torch.full((blocks, 2), -1, dtype=torch.int64, device=device) for _ in range(2))
    by_hash, by_value, merged, again = plane(blocks), plane(blocks), torch.zeros_like(now), torch.zeros_like(now)
    found = {}
    kernels.split(before, layout, previous, rest_before)
    kernels.split(now, layout, exponents, rest)
    found["split"] = [previous, rest_before, exponents, rest]
    kernels.hash_blocks(before, layout, block, old)
    found["hash_blocks"] = [old]
    total = kernels.scan_hashed(now, layout, block, old, new, by_hash_rest, by_hash)
    found["scan_hashed"] = [new, by_hash_rest, by_hash, number(total)]
    total = kernels.scan_exact(now, layout, block, previous, by_value_rest, by_value)
    found["scan_exact"] = [by_value_rest, by_value, number(total)]
    for name, base in (("collect", previous), ("collect_plain", None)):
        symbols = plane(n)
        count = kernels.collect(now, layout, block, by_value, base, symbols)
        updated = previous.clone()
        kernels.apply(symbols[:count], layout, n, block, by_value, base is not None, updated)
        found[name] = [symbols, number(count)]
        found[name.replace("collect", "apply")] = [updated]
    total = kernels.merge_checked(exponents, rest, layout, block, merged)
    found["merge_checked"] = [merged, number(total)]
    kernels.merge(previous, rest_before, layout, again)
    found["merge"] = [again]
    return found


def _values(layout: FloatLayout, shift: int) -> torch.Tensor:
    """Fixed values of every magnitude: ramps of bits, mostly the same exponents for any shift."""
    ramp = torch.arange(VALUES, dtype=torch.int64)
    exponents = (ramp * 7 // 5 + torch.where(ramp % 211 == 5, shift, 0)) % 2**layout.exponent_bits
    rest = ramp * 40503 % 2**layout.mantissa_bits
    sign = ramp % 3 % 2
    bits: torch.Tensor = (sign << (layout.value_bytes * 8 - 1)) | (exponents << layout.mantissa_bits) | rest
    return bits.to(layout.bits_dtype)


def _check_coder(backend: Backend, layout: FloatLayout, symbols: torch.Tensor) -> None:
    bits = layout.exponent_bits
    out = torch.zeros(backend.coder.bound(symbols.numel(), bits), dtype=torch.uint8, device=symbols.device)
    size = backend.coder.encode(symbols, bits, out)
    decoded = torch.full_like(symbols, 255)
    backend.coder.decode(out[:size], bits, decoded)
    if not torch.equal(decoded, symbols):
        raise SelfCheckError(f"its coder does not give back what it coded, for symbols of {bits} bits; report this")
