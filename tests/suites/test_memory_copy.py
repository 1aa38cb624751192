"""The memcpy baseline: it copies all bytes and no other, with any number of threads."""

from __future__ import annotations

import pytest
import torch

from suites.memory_copy import ALIGNMENT, MemoryCopy

GUARD = 64


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, 2 * ALIGNMENT, 10 * ALIGNMENT + 17])
def test_every_byte_is_copied_and_no_other(threads: int, size: int) -> None:
    source = torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    kept, room = source.clone(), torch.full((size + 2 * GUARD,), 7, dtype=torch.uint8)
    copy = MemoryCopy(threads)
    copy(room[GUARD:-GUARD], source)
    copy.close()
    assert torch.equal(room[GUARD:-GUARD], kept)
    assert torch.equal(source, kept)
    assert room[:GUARD].tolist() == room[-GUARD:].tolist() == [7] * GUARD


def test_other_types_are_copied_bit_for_bit() -> None:
    nans = torch.arange(0x7F80, 0x8000, dtype=torch.int16)
    target = torch.zeros_like(nans)
    copy = MemoryCopy(1)
    copy(target.view(torch.bfloat16), nans.view(torch.bfloat16))
    assert torch.equal(target, nans)
