"""The check of a backend before its first use: it finds every kind of wrong kernel, and a coder that loses symbols."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ciera_piper_core.exponents.backend import Backend, backend
from ciera_piper_core.exponents.layout import BF16, FloatLayout
from ciera_piper_core.exponents.reference import ReferenceKernels
from ciera_piper_core.exponents.self_check import SelfCheckError, check_backend, stages
from tests.ciera_piper_core.exponents.samples import stepped, weights


class WrongKernels(ReferenceKernels):
    """Kernels one of whose outputs has one bit wrong, as a last byte or a short last block would have."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def __getattribute__(self, name: str) -> object:
        method = super().__getattribute__(name)
        if name != super().__getattribute__("wrong"):
            return method

        def spoilt(*tensors: object) -> object:
            result = method(*tensors)
            written = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
            written[-1].view(torch.uint8).view(-1)[-1] ^= 1
            return result

        return spoilt


KERNELS = ("split", "merge", "merge_checked", "hash_blocks", "scan_hashed", "scan_exact", "collect", "apply")


@pytest.mark.parametrize("wrong", KERNELS)
def test_a_kernel_whose_last_byte_is_wrong_is_found(wrong: str) -> None:
    usual = backend("reference")
    check_backend(usual)
    with pytest.raises(SelfCheckError, match=r"its kernel \w+ computes something else than reference"):
        check_backend(replace(usual, kernels=WrongKernels(wrong)))


@pytest.mark.parametrize("wrong", ["merge_checked", "scan_hashed", "scan_exact", "collect"])
def test_a_number_that_is_wrong_is_found(wrong: str) -> None:
    kernels = ReferenceKernels()
    right = getattr(kernels, wrong)
    setattr(kernels, wrong, lambda *arguments: right(*arguments) ^ 1)
    with pytest.raises(SelfCheckError, match="computes something else"):
        check_backend(replace(backend("reference"), kernels=kernels))


def test_a_coder_that_loses_a_symbol_is_found() -> None:
    usual = backend("reference")

    class Loses:
        name, code = "loses", 9

        def bound(self, symbols: int, symbol_bits: int) -> int:
            return usual.coder.bound(symbols, symbol_bits)

        def encode(self, symbols: torch.Tensor, symbol_bits: int, out: torch.Tensor, table_key: object = None) -> int:
            return usual.coder.encode(symbols, symbol_bits, out, table_key)

        def decode(self, coded: torch.Tensor, symbol_bits: int, symbols: torch.Tensor) -> None:
            usual.coder.decode(coded, symbol_bits, symbols)
            symbols[0] = symbols[0] ^ 1

    with pytest.raises(SelfCheckError, match="its coder does not give back"):
        check_backend(Backend("loses", usual.kernels, Loses()))


def test_stages_name_every_kernel_and_see_changed_and_unchanged_blocks() -> None:
    layout: FloatLayout = BF16
    before = weights(layout, 1000)
    found = stages(ReferenceKernels(), layout, 64, stepped(before, layout, 0.005), before)
    assert set(KERNELS) <= set(found)
    changed = found["scan_exact"][1]
    assert 0 < int(changed.sum()) < changed.numel()
    assert torch.equal(found["apply"][0], found["split"][2])
    assert torch.equal(found["apply_plain"][0], found["split"][2])
    assert torch.equal(found["merge"][0], before)
