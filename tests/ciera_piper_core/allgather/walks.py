"""Random walks of weights for the tests of gathers: the same on every rank, for every rank."""

from __future__ import annotations

import torch


class Walk:
    """All ranks' shards, step after step, as every rank can compute them.

    Each step multiplies a share of the values, so that exponents of some change; sprinkles in NaN
    payloads, infinities, -0.0 and subnormals.
    """

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype, seed: int = 0, rate: float = 0.02) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype
        self._rate = rate
        self._values = [torch.randn(size, generator=self._generator) * 0.02 for size in sizes]

    def step(self) -> None:
        """To the next values."""
        for values in self._values:
            chosen = torch.rand(values.shape, generator=self._generator) < self._rate
            factors = torch.exp2(torch.randn(values.shape, generator=self._generator) * 2)
            values[chosen] *= factors[chosen]
            if len(values) > 8:
                where = torch.randint(len(values), (4,), generator=self._generator)
                values[where] = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-40])

    def shard(self, rank: int) -> torch.Tensor:
        """A rank's values, in a tensor of its own."""
        return self._values[rank].to(self._dtype)

    def whole(self) -> torch.Tensor:
        """All shards in rank order."""
        return torch.cat([values.to(self._dtype) for values in self._values])


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bytes, of values of the same type."""
    assert found.dtype is expected.dtype
    assert torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
