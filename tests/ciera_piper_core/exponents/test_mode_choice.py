"""The choice between exponents and differences: the smaller by entropy, from a sample."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.exponents.layout import BF16, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.mode_choice import SAMPLE_SYMBOLS, Sampled, regularity
from ciera_piper_core.exponents.reference import ReferenceKernels
from ciera_piper_core.exponents.workspace import Workspace
from tests.ciera_piper_core.exponents.samples import IDS, stepped, weights

KERNELS = ReferenceKernels()


def chosen(before: torch.Tensor, now: torch.Tensor, layout: FloatLayout, block: int = 64) -> str:
    values = now.numel()
    previous = torch.empty(layout.exponent_bytes(values), dtype=torch.uint8)
    rest = torch.empty(layout.rest_bytes(values), dtype=torch.uint8)
    changed = torch.empty(-(-values // block), dtype=torch.uint8)
    KERNELS.split(before, layout, previous, rest)
    KERNELS.scan_exact(now, layout, block, previous, rest, changed)
    sampled = Sampled(KERNELS, Workspace(), layout, block)
    kept = changed.clone()
    found = sampled.smaller_coding(now, changed, int(changed.sum()), previous)
    assert torch.equal(changed, kept)
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("values", [64, 1000, 5 * SAMPLE_SYMBOLS])
def test_few_changes_are_smaller_as_differences(layout: FloatLayout, values: int) -> None:
    before = weights(layout, values)
    now = stepped(before, layout, 0.01)
    now[0] = stepped(before[:1], layout, 1.0)[0]
    assert chosen(before, now, layout) == "delta"


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("values", [1000, 5 * SAMPLE_SYMBOLS])
def test_unrelated_values_are_smaller_as_they_are(layout: FloatLayout, values: int) -> None:
    assert chosen(weights(layout, values, seed=1), weights(layout, values, seed=2), layout) == "block"


def test_a_sample_is_drawn_from_the_whole_segment() -> None:
    """Half of a large segment changed little, half is new: the new half decides."""
    values = 8 * SAMPLE_SYMBOLS
    before, now = weights(BF16, values, seed=1), weights(BF16, values, seed=1)
    now[: values // 2] = stepped(before[: values // 2], BF16, 0.05)
    now[values // 2 :] = (torch.randint(100, 103, (values // 2,)) << 7).to(torch.int16)
    before[values // 2 :] = (torch.randint(0, 250, (values // 2,)) << 7).to(torch.int16)
    assert chosen(before, now, BF16) == "block"


def test_regularity_is_entropy_turned_round() -> None:
    """n log2 n - regularity are the bits of n symbols."""
    assert regularity(torch.empty(0, dtype=torch.uint8)) == 0
    assert regularity(torch.arange(256).to(torch.uint8)) == 0
    assert regularity(torch.full((16,), 200, dtype=torch.uint8)) == 16 * 4 << 16
    bits = 4 * 2 - regularity(torch.tensor([0, 0, 0, 7], dtype=torch.uint8)) / 2**16
    assert bits == pytest.approx(4 * 0.8112781, abs=1e-4)
