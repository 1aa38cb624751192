"""Rows whose bytes say who sends them to whom, and the plain reference: what must arrive."""

from __future__ import annotations

import numpy as np
import torch

from ciera_piper_core.alltoall.traffic import splitmix64

DTYPES = (
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
)


def rows(sender: int, receiver: int, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """``count`` rows of ``shape`` from ``sender`` to ``receiver``: arbitrary bits, NaNs among them."""
    size = count * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    words = splitmix64(sender * 1000 + receiver + 1, np.arange((size + 7) // 8, dtype=np.uint64))
    data = torch.empty(size, dtype=torch.uint8)
    data.numpy()[:] = words.view(np.uint8)[:size]
    if dtype == torch.bool:
        data = data % 2
    return data.view(dtype).view(count, *shape)


def sent(rank: int, matrix: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What ``rank`` sends, ``matrix`` being rows from each rank to each."""
    return torch.cat([rows(rank, peer, int(count), shape, dtype) for peer, count in enumerate(matrix[rank])])


def received(rank: int, matrix: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What ``rank`` must receive."""
    return torch.cat([rows(peer, rank, int(count), shape, dtype) for peer, count in enumerate(matrix[:, rank])])


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal in shape, dtype and every bit; NaN equals itself."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))


def matrices(world: int) -> dict[str, np.ndarray]:
    """Traffic with all kinds of holes: rows from each rank to each."""
    random = np.random.default_rng(world)
    ragged = random.integers(0, 4, size=(world, world))
    silent, deaf, lone, one_node = ragged.copy(), ragged.copy(), np.zeros_like(ragged), np.zeros_like(ragged)
    silent[0], deaf[:, 0], lone[world - 1, 0] = 0, 0, 5
    one_node[:, : (world + 1) // 2] = 1
    return {
        "ragged": ragged,
        "silent sender": silent,
        "deaf receiver": deaf,
        "lone pair": lone,
        "half": one_node,
        "nothing": np.zeros_like(ragged),
    }
