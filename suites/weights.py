"""Data that codecs are measured on, by name: made up, from real models, trained here, and hostile.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from suites.model_file import find_model_file, read_weights

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

DEVIATION = 0.02
"""Of Gaussian weights: what models of some thousands of hidden units are initialised with."""

RARE = 2**-20
"""Share of the rare exponent in skewed data; the first value has it."""

CHANGED = 0.005
"""Share of exponents that differ from the previous iteration's, in deltas."""

INT = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def make_weights(
    kind: str,
    count: int,
    dtype: torch.dtype,
    seed: int,
    scratch: MutableMapping[str, Any],
    alive: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """So many values of a kind of data, flat, on the CPU; the same wherever the seed is.

    Weights of models repeat from the start where they are fewer: no peer looks back as far as a whole model.

    Args:
        kind: ``gaussian``, ``real`` (a model's file, see ``suites.model_file``), ``trained``, ``uniform``
            (every bit pattern alike, NaNs among them: nothing can be saved), ``constant`` or ``skewed``
            (one exponent but for a rare one, which comes first).
        scratch: keeps models from case to case (``Context.scratch``).
        alive: called now and then while it works.

    Raises:
        UsageError: real weights are not to be had.
        ValueError: an unknown kind.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "gaussian":
        return (torch.randn(count, generator=generator) * DEVIATION).to(dtype)
    if kind == "uniform":
        bits = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64, generator=generator)
        return bits.to(INT[dtype]).view(dtype)
    if kind == "constant":
        return torch.full((count,), DEVIATION, dtype=dtype)
    if kind == "skewed":
        values = (torch.rand(count, generator=generator) * 0.9 + 1).to(dtype)
        values[torch.rand(count, generator=generator) < RARE] = 4.0
        values[:1] = 4.0
        return values
    if kind in ("real", "trained"):
        key = f"weights/{kind}/{seed if kind == 'trained' else ''}"
        if key not in scratch:
            scratch[key] = _real_weights(alive) if kind == "real" else _trained_weights(seed, alive)
        return _repeated(scratch[key].to(dtype), count)
    raise ValueError(f"unknown kind of weights {kind!r}")


def make_deltas(count: int, symbol_bits: int, seed: int) -> torch.Tensor:
    """Differences of exponents to the previous iteration's, uint8, modulo ``2 ** symbol_bits``.

    ``CHANGED`` of them are not zero, scattered: a magnitude that crosses a power of two moves its exponent by one.
    """
    generator = torch.Generator().manual_seed(seed)
    deltas = torch.zeros(count, dtype=torch.uint8)
    places = torch.randperm(count, generator=generator)[: round(count * CHANGED)]
    up = torch.rand(len(places), generator=generator) < 0.5
    deltas[places] = torch.where(up, 1, 2**symbol_bits - 1).to(torch.uint8)
    return deltas


def _real_weights(alive: Callable[[], None]) -> torch.Tensor:
    """All weights of the model file, float32."""
    found = find_model_file()
    assert found is not None, "a case without its data is skipped"
    parts = []
    for part in read_weights(found.path):
        parts.append(part.float())
        alive()
    return torch.cat(parts)


def _trained_weights(seed: int, alive: Callable[[], None]) -> torch.Tensor:
    from suites.trained_weights import trained_weights

    return trained_weights(seed, alive)


def _repeated(weights: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` values: the weights from the start, again and again."""
    values = torch.empty(count, dtype=weights.dtype)
    for part in torch.split(values, len(weights)):
        part.copy_(weights[: len(part)])
    return values


def entropy_bytes(symbols: torch.Tensor) -> float:
    """Bytes that the order-0 entropy of uint8 symbols asks for, all of them together."""
    counts = torch.zeros(256, dtype=torch.int64)
    for part in torch.split(symbols, 2**22):
        counts += torch.bincount(part, minlength=256)
    shares = counts[counts > 0].double() / len(symbols)
    return float(-(shares * shares.log2()).sum()) * len(symbols) / 8
