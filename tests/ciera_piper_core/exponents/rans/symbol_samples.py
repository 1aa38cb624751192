"""Symbols of many kinds, for the tests of the rANS coder."""

from __future__ import annotations

from functools import lru_cache

import torch

KINDS = (
    "normal",
    "differences",
    "rare_differences",
    "two",
    "flat",
    "wide",
    "random",
    "five_bits",
    "rare_first",
    "steps",
)


def symbols_of_kind(kind: str, n: int, seed: int = 0) -> torch.Tensor:
    """A tensor of one's own: uint8 ``[n]``; of ``five_bits`` all are below 32.

    normal: exponents of N(0, 1) weights. differences, rare_differences: 0.5 % and 0.01 % are not 0. two: a coin
    of 30 %. flat: 12 symbols. wide: 80 symbols. rare_first: one symbol, but for the first. steps: runs of
    different distributions.
    """
    return _made(kind, n, seed).clone()


@lru_cache(maxsize=64)
def _made(kind: str, n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)

    def normal(values: int) -> torch.Tensor:
        return torch.randn(values, generator=generator).to(torch.bfloat16).view(torch.int16) >> 7 & 255

    def chosen(rate: float) -> torch.Tensor:
        return torch.rand(n, generator=generator) < rate

    def below(top: int) -> torch.Tensor:
        return torch.randint(0, top, (n,), generator=generator)

    made = {
        "normal": lambda: normal(n),
        "differences": lambda: torch.where(chosen(0.005), below(2) * 254 + 1, 0),
        "rare_differences": lambda: torch.where(chosen(0.0001), below(256), 9),
        "two": lambda: chosen(0.3).to(torch.uint8) + 17,
        "flat": lambda: below(12) * 9,
        "wide": lambda: below(80) + 100,
        "random": lambda: below(256),
        "five_bits": lambda: (torch.randn(n, generator=generator) * 2 + 16).clamp(0, 31),
        "rare_first": lambda: torch.where(torch.arange(n) == 0, 200, 3),
        "steps": lambda: normal(n) - torch.arange(n) * 4 // max(n, 1) * 9,
    }
    return made[kind]().to(torch.uint8)
