"""The conformance suite: what every backend must do, at every instruction level, bit for bit as reference does."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents.container import compress, decompress
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import LAYOUTS, FloatLayout
from ciera_piper_core.exponents.reference import ReferenceKernels
from ciera_piper_core.exponents.segment import CodingSettings, Mode, SegmentDecoder, SegmentEncoder
from ciera_piper_core.exponents.self_check import backend_device, stages
from tests.ciera_piper_core.exponents.backends import VARIANTS, build
from tests.ciera_piper_core.exponents.samples import IDS, every_pattern, random_bits, stepped, weights

if TYPE_CHECKING:
    from ciera_piper_core.exponents.backend import Backend

REFERENCE = ReferenceKernels()
GUARD = 64


@pytest.fixture(params=VARIANTS, scope="module")
def used(request: pytest.FixtureRequest) -> Backend:
    return build(request.param)


def agree(used: Backend, layout: FloatLayout, block: int, now: torch.Tensor, before: torch.Tensor) -> None:
    """Every kernel's output is the reference's."""
    device = backend_device(used)
    expected = stages(REFERENCE, layout, block, now, before)
    found = stages(used.kernels, layout, block, now.to(device), before.to(device))
    for stage, tensors in expected.items():
        for place, (ours, theirs) in enumerate(zip(tensors, found[stage], strict=True)):
            assert torch.equal(ours, theirs.cpu()), f"{stage}, output {place}, {now.numel()} values, blocks of {block}"


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("block", BLOCKS)
def test_kernels_agree_around_every_block_and_vector_width(used: Backend, layout: FloatLayout, block: int) -> None:
    lengths = {0, 1, 65, block + 1, 3 * block + 17}
    if used.name != "triton":
        # Its interpreter takes a hundred times as long; tests of its own cover more.
        lengths |= {2, 7, 8, 9, 31, 33, 63, 64, 127, 129, block - 1, block, 2 * block}
    for values in sorted(lengths):
        before = weights(layout, values, seed=values)
        agree(used, layout, block, stepped(before, layout, 0.005, seed=values), before)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_kernels_agree_on_every_pattern(used: Backend, layout: FloatLayout) -> None:
    patterns = every_pattern(layout)
    agree(used, layout, 512, patterns, patterns.roll(1000))


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("values", [1, 100, 1537])
def test_kernels_agree_on_random_bits_in_views_at_odd_places(used: Backend, layout: FloatLayout, values: int) -> None:
    """Outputs begin at any byte and values at any element; what lies around them stays as it was."""
    device, block = backend_device(used), 64
    kernels, blocks = used.kernels, -(-values // block)
    around: list[torch.Tensor] = []

    def inside(size: int, content: torch.Tensor | None = None) -> torch.Tensor:
        whole = torch.full((size + 2 * GUARD,), 165, dtype=torch.uint8, device=device)
        around.append(whole)
        view = whole[GUARD - 3 : GUARD - 3 + size]
        if content is not None:
            view.copy_(content)
        return view

    def bits(content: torch.Tensor) -> torch.Tensor:
        whole = torch.full((values + 5,), 85, dtype=layout.bits_dtype, device=device)
        whole[3 : 3 + values] = content.to(device)
        return whole[3 : 3 + values]

    now_here, before_here = random_bits(layout, values, 1), random_bits(layout, values, 2)
    before_here[: values // 2] = now_here[: values // 2]
    expected = stages(REFERENCE, layout, block, now_here, before_here)
    now = bits(now_here)
    exponents, rest = inside(layout.exponent_bytes(values)), inside(layout.rest_bytes(values))
    previous = inside(layout.exponent_bytes(values), expected["split"][0].to(device))
    changed, symbols = inside(blocks), inside(values)
    kernels.split(now, layout, exponents, rest)
    assert torch.equal(exponents.cpu(), expected["split"][2])
    assert torch.equal(rest.cpu(), expected["split"][3])
    rest.fill_(0)
    kernels.scan_exact(now, layout, block, previous, rest, changed)
    assert torch.equal(rest.cpu(), expected["scan_exact"][0])
    assert torch.equal(changed.cpu(), expected["scan_exact"][1])
    changed.fill_(9)
    old = expected["hash_blocks"][0].to(device)
    kernels.scan_hashed(now, layout, block, old, torch.empty_like(old), rest, changed)
    assert torch.equal(changed.cpu(), expected["scan_hashed"][2])
    count = kernels.collect(now, layout, block, changed, previous, symbols)
    assert torch.equal(symbols[:count].cpu(), expected["collect"][0][:count])
    kernels.apply(symbols[:count], layout, values, block, changed, True, previous)
    assert torch.equal(previous.cpu(), expected["split"][2])
    merged = bits(torch.zeros(values, dtype=layout.bits_dtype))
    kernels.merge_checked(previous, rest, layout, block, merged)
    assert torch.equal(merged.cpu(), now_here)
    assert torch.equal(now.cpu(), now_here)
    for view, whole in zip((exponents, rest, previous, changed, symbols), around, strict=True):
        assert (whole[: GUARD - 3] == 165).all()
        assert (whole[GUARD - 3 + view.numel() :] == 165).all()


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("mode", get_args(Mode))
def test_segments_of_one_backend_are_decoded_by_every_other(used: Backend, layout: FloatLayout, mode: Mode) -> None:
    """Ranks may run on different processors. Where coders share a format, the bytes are the same too."""
    values, block = 3001, 64
    before = weights(layout, values)
    now = stepped(before, layout, 0.01)
    device = backend_device(used)
    encoder = SegmentEncoder(values, layout, CodingSettings(mode, block), used, device)
    encoder.refresh(before.to(device))
    fixed = torch.full((encoder.fixed_bytes,), 7, dtype=torch.uint8, device=device)
    variable = torch.full((encoder.variable_bound,), 7, dtype=torch.uint8, device=device)
    record = encoder.encode(now.to(device), fixed, variable)
    same_format = 0
    for variant in VARIANTS:
        try:
            other = build(variant)
        except pytest.skip.Exception:
            continue
        if other.coder.code != used.coder.code:
            continue
        same_format += 1
        there = backend_device(other)
        decoder = SegmentDecoder(values, layout, block, other, there)
        decoder.refresh(before.to(there))
        out = torch.zeros(values, dtype=layout.dtype, device=there)
        decoder.decode(record, fixed.to(there), variable[: record.variable_bytes].to(there), out)
        assert torch.equal(layout.bits(out).cpu(), now), variant
        again = SegmentEncoder(values, layout, CodingSettings(mode, block), other, there)
        again.refresh(before.to(there))
        its_fixed, its_variable = torch.zeros_like(fixed, device=there), torch.zeros_like(variable, device=there)
        assert again.encode(now.to(there), its_fixed, its_variable) == record, variant
        assert torch.equal(its_fixed.cpu(), fixed.cpu()), variant
        sent = record.variable_bytes
        if used.name != "nvcomp":
            assert torch.equal(its_variable[:sent].cpu(), variable[:sent].cpu()), variant
    assert same_format >= 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_containers_come_back(used: Backend, layout: FloatLayout) -> None:
    for values in (0, 1, 1025, 5000):
        tensor = weights(layout, values).view(layout.dtype).to(backend_device(used))
        decoded = decompress(compress(tensor, used), used)
        assert torch.equal(layout.bits(decoded).cpu(), layout.bits(tensor).cpu())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from(LAYOUTS),
    block=st.sampled_from(BLOCKS),
    values=st.integers(0, 2500),
    rate=st.sampled_from([0.0, 0.001, 0.1, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_kernels_agree_whatever_the_input(
    used: Backend, layout: FloatLayout, block: int, values: int, rate: float, seed: int
) -> None:
    before = random_bits(layout, values, seed)
    agree(used, layout, block, stepped(before, layout, rate, seed), before)
