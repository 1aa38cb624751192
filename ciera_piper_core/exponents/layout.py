"""Where sign, exponent and mantissa of a value lie, and how they lie once they are apart.

A tensor of n values is split into an exponent plane and the rest (sign and mantissa). Both are
plain bytes, little endian, and hold every bit of the values: NaN payloads, infinities, subnormals
and -0.0 come back as they were. Values are always handled as integers of their width, never as
floats: a float comparison would call -0.0 and 0.0 equal and a NaN unequal to itself.

===== ======== =============================== ==========================================================
dtype exponent exponent plane                  rest
===== ======== =============================== ==========================================================
bf16  8 bits   1 byte a value                  1 byte a value: sign << 7 | mantissa
fp16  5 bits   5 bits a value, packed          low 8 mantissa bits, 1 byte a value; then 3 bits a value,
                                               packed: sign << 2 | top 2 mantissa bits
fp32  8 bits   1 byte a value                  sign << 7 | top 7 mantissa bits, 1 byte a value; then the
                                               low 16 mantissa bits, 2 bytes a value
===== ======== =============================== ==========================================================

Packed planes hold value i in bits ``[i * width, (i + 1) * width)`` of one little-endian bit string;
unused bits of the last byte are zero. Where a plane of several parts ends one part, the next begins
at once (no alignment between parts).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class FloatLayout:
    """The bits of one floating point type.

    Attributes:
        dtype: of the values. bits_dtype: the integer type of the same width, through which they are seen.
        value_bytes: of a value.
        exponent_bits: of a value. mantissa_bits: without the sign.
        code: names the type in a payload's header.
    """

    dtype: torch.dtype
    bits_dtype: torch.dtype
    value_bytes: int
    exponent_bits: int
    mantissa_bits: int
    code: int

    def exponent_bytes(self, values: int) -> int:
        """Bytes of the exponent plane of so many values (S_e)."""
        return (values * self.exponent_bits + 7) // 8

    def rest_bytes(self, values: int) -> int:
        """Bytes of the sign and mantissa plane of so many values (S_sm)."""
        return sum(self.rest_parts(values))

    def rest_parts(self, values: int) -> tuple[int, int]:
        """Bytes of the two parts of the rest: 1 byte a value, then what is left."""
        left_bits = self.value_bytes * 8 - self.exponent_bits - 8
        return values, (values * left_bits + 7) // 8

    def bits(self, values: torch.Tensor) -> torch.Tensor:
        """The values as integers, flat; shares memory.

        Raises:
            ValueError: not of this type, or not contiguous (a copy would hide that the caller's tensor
                is not the one that is read or written).
        """
        if values.dtype is self.bits_dtype:
            values = values.view(self.dtype)
        if values.dtype is not self.dtype:
            raise ValueError(f"a tensor of {values.dtype}, where {self.dtype} is expected")
        if not values.is_contiguous():
            raise ValueError("the tensor is not contiguous; pass .contiguous()")
        return values.reshape(-1).view(self.bits_dtype)


BF16 = FloatLayout(torch.bfloat16, torch.int16, 2, 8, 7, code=1)
FP16 = FloatLayout(torch.float16, torch.int16, 2, 5, 10, code=2)
FP32 = FloatLayout(torch.float32, torch.int32, 4, 8, 23, code=3)
LAYOUTS = (BF16, FP16, FP32)


def layout_of(dtype: torch.dtype) -> FloatLayout:
    """The layout of a type.

    Raises:
        ValueError: a type that has none; the message names those that have.
    """
    for layout in LAYOUTS:
        if layout.dtype is dtype:
            return layout
    known = ", ".join(str(layout.dtype) for layout in LAYOUTS)
    raise ValueError(f"exponents of {dtype} cannot be coded; known: {known}")


def layout_of_code(code: int) -> FloatLayout:
    """The layout that a payload names.

    Raises:
        ValueError: no such code.
    """
    for layout in LAYOUTS:
        if layout.code == code:
            return layout
    raise ValueError(f"a payload of unknown value type {code}")
