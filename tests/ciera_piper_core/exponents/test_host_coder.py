"""The host's coder behind another device's tensors: same bytes, and what is behind the tensors is left alone."""

from __future__ import annotations

import torch

from ciera_piper_core.exponents.backend import backend, default_backend
from ciera_piper_core.exponents.host_coder import HostCoder
from ciera_piper_core.exponents.layout import BF16
from ciera_piper_core.exponents.reference import symbols_of
from tests.ciera_piper_core.exponents.samples import weights


class Elsewhere(torch.Tensor):
    """A tensor that claims to be on another device, and can be copied from and to."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("meta")

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


def test_it_is_the_coder_that_it_wraps() -> None:
    inner = default_backend().coder
    coder = HostCoder(inner)
    assert (coder.name, coder.code) == (inner.name, inner.code)
    assert coder.bound(12345, 5) == inner.bound(12345, 5)


def test_symbols_elsewhere_give_the_same_bytes_and_come_back() -> None:
    inner = backend("reference").coder
    coder = HostCoder(inner)
    symbols = symbols_of(weights(BF16, 3000), BF16)
    size = coder.bound(3000, 8)
    here, there = torch.zeros(size + 16, dtype=torch.uint8), torch.full((size + 16,), 165, dtype=torch.uint8)
    used = coder.encode(symbols, 8, here)
    assert coder.encode(symbols.as_subclass(Elsewhere), 8, there.as_subclass(Elsewhere)) == used
    assert torch.equal(here[:used], there[:used])
    assert (there[used:] == 165).all()
    decoded = torch.zeros(3000, dtype=torch.uint8)
    coder.decode(there[:used].as_subclass(Elsewhere), 8, decoded.as_subclass(Elsewhere))
    assert torch.equal(decoded, symbols)
