"""Backends on lengths that tests of every detail cannot afford: several million values, and places beyond 2**31."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.exponents.container import compress, decompress
from ciera_piper_core.exponents.layout import BF16, FP16, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.reference import ReferenceKernels
from ciera_piper_core.exponents.segment import CodingSettings, SegmentDecoder, SegmentEncoder
from ciera_piper_core.exponents.self_check import backend_device
from tests.ciera_piper_core.exponents.backends import VARIANTS, build
from tests.ciera_piper_core.exponents.samples import IDS, stepped, weights

REFERENCE = ReferenceKernels()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("native") or name == "nvcomp"])
def test_all_stages_together_at_a_length_that_broke_another_codec(variant: str, layout: FloatLayout) -> None:
    """13,058,819 values: filters that were right alone were wrong together (c-blosc2 issue 528)."""
    used, values = build(variant, threads=2), 13_058_819
    device = backend_device(used)
    before = weights(layout, values).to(device)
    now = stepped(before.cpu(), layout, 0.0001).to(device)
    encoder = SegmentEncoder(values, layout, CodingSettings("auto"), used, device)
    decoder = SegmentDecoder(values, layout, 512, used, device)
    encoder.refresh(before)
    decoder.refresh(before)
    fixed = torch.empty(encoder.fixed_bytes, dtype=torch.uint8, device=device)
    variable = torch.empty(encoder.variable_bound, dtype=torch.uint8, device=device)
    out = torch.empty_like(now)
    for bits in (now, before.flip(0)):
        record = encoder.encode(bits, fixed, variable)
        decoder.decode(record, fixed, variable[: record.variable_bytes], out)
        encoder.commit()
        assert torch.equal(out, bits)
    tensor = now.view(layout.dtype)
    assert torch.equal(layout.bits(decompress(compress(tensor, used), used)), now)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "layout"),
    [("native-scalar", BF16), ("native-avx2", BF16), ("native-avx512", BF16), ("native-avx2", FP16)],
    ids=["scalar-bfloat16", "avx2-bfloat16", "avx512-bfloat16", "avx2-float16"],
)
def test_places_beyond_2_31_are_reached(variant: str, layout: FloatLayout) -> None:
    """Memory that is only read, or not at all, stays one page of zeros: 4 GiB of values cost next to nothing."""
    used, values, block = build(variant), 2**31 + 700, 512
    bits = torch.zeros(values, dtype=torch.int16)
    last = values - values % block
    bits[last:] = weights(layout, values - last)
    blocks = -(-values // block)
    hashes = torch.empty(blocks, 2, dtype=torch.int64)
    used.kernels.hash_blocks(bits, layout, block, hashes)
    expected = torch.empty(2, 2, dtype=torch.int64)
    REFERENCE.hash_blocks(bits[last - block :], layout, block, expected)
    assert torch.equal(hashes[-2:], expected)
    assert (hashes[:-1] == expected[0]).all()
    changed = torch.zeros(blocks, dtype=torch.uint8)
    changed[-1] = 1
    symbols = torch.empty(values - last, dtype=torch.uint8)
    plane = torch.zeros(layout.exponent_bytes(values), dtype=torch.uint8)
    assert used.kernels.collect(bits, layout, block, changed, plane, symbols) == values - last
    used.kernels.apply(symbols, layout, values, block, changed, True, plane)
    tail = torch.empty(layout.exponent_bytes(values - last), dtype=torch.uint8)
    REFERENCE.split(bits[last:], layout, tail, torch.empty(layout.rest_bytes(values - last), dtype=torch.uint8))
    assert torch.equal(plane[layout.exponent_bytes(last) :], tail)
    assert not plane[layout.exponent_bytes(last) - 100 : layout.exponent_bytes(last)].any()
