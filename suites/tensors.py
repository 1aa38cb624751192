"""Tensors of the compute suites: dtypes by name, cheap data, and comparison with a float64 oracle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.errors import unknown_name

if TYPE_CHECKING:
    import torch

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1}
"""Bytes of an element, by the dtypes that compute suites know."""

MIN_CAPABILITY = {"bfloat16": (8, 0), "float8_e4m3fn": (8, 9)}
"""Least CUDA compute capability with matrix units for the dtype; all have the others."""

BLOCK = 1_048_573
"""Elements drawn at random before they repeat: a prime, so that no two rows of a matrix are equal."""

CHUNK = 2**20
"""Elements that are compared at once."""

OUTPUT_STEPS = 8
TERM_STEPS = 4


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name.

    Raises:
        UsageError: no dtype of the compute suites.
    """
    import torch

    if name not in ITEM_BYTES:
        raise unknown_name("dtype", name, list(ITEM_BYTES))
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def dtype_reason(name: str, device: str) -> str | None:
    """Why matrix products of this dtype cannot be measured on the device, or None."""
    if device == "cpu":
        return "float8 products need a CUDA device of capability 8.9 or above" if name.startswith("float8") else None
    import torch

    least, has = MIN_CAPABILITY.get(name, (0, 0)), torch.cuda.get_device_capability()
    if has >= least:
        return None
    return f"{name} products need CUDA capability {least[0]}.{least[1]}, this device has {has[0]}.{has[1]}"


def fill(tensor: torch.Tensor, seed: int, scale: float = 1.0) -> torch.Tensor:
    """Fill a contiguous tensor with normal numbers of deviation ``scale``, at the speed of memory.

    The same seed gives the same numbers on every machine.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    count = min(BLOCK, tensor.numel())
    block = (torch.randn(count, generator=generator) * scale).to(tensor.dtype).to(tensor.device)
    flat = tensor.detach().view(-1)
    for start in range(0, len(flat), BLOCK):
        part = flat[start : start + BLOCK]
        part.copy_(block[: len(part)])
    return tensor


def tolerance(dtype: torch.dtype, terms: int) -> float:
    """Relative error allowed of a result in ``dtype`` that float32 sums of ``terms`` products lead to.

    Rounding of inputs, intermediates and result is some steps of the dtype; the sums add some
    float32 steps that grow as the square root of their length. Measured errors reach a third of it.
    """
    import torch

    steps = OUTPUT_STEPS * torch.finfo(dtype).eps
    return steps + TERM_STEPS * math.sqrt(terms) * torch.finfo(torch.float32).eps


def count_wrong(actual: torch.Tensor, expected: torch.Tensor, allowed: float, *, scale: torch.Tensor) -> int:
    """Number of elements further than ``allowed * (|expected| + scale)`` from float64 ``expected``.

    ``scale`` (:func:`row_scale`, :func:`whole_scale`) keeps a value near zero from being held to its
    own size, when it is the sum of larger ones. NaN is wrong.
    """
    import torch

    rows = max(1, CHUNK // expected.shape[-1])
    # By parts: temporaries in double precision would outweigh what is compared.
    parts = (torch.split(tensor.flatten(0, -2), rows) for tensor in (actual, expected, scale))
    wrong = 0
    for mine, right, size in zip(*parts, strict=True):
        error = (mine.double() - right).abs()
        wrong += int((~(error <= allowed * (right.abs() + size))).sum())
    return wrong


def row_scale(expected: torch.Tensor) -> torch.Tensor:
    """Root mean square of each row; shape ``(..., 1)``."""
    import torch

    norm: torch.Tensor = torch.linalg.vector_norm(expected, dim=-1, keepdim=True)
    return norm / math.sqrt(expected.shape[-1])


def whole_scale(expected: torch.Tensor) -> torch.Tensor:
    """Root mean square of each row, or of all elements where that is larger; shape ``(..., 1)``."""
    import torch

    return row_scale(expected).maximum(torch.linalg.vector_norm(expected) / math.sqrt(expected.numel()))
