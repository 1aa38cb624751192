"""Shards in two states: as many exponents differ as was asked for, by one, where they may, and nothing else."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.exponents.kernels import DEFAULT_BLOCK
from ciera_piper_core.exponents.layout import BF16, LAYOUTS, FloatLayout
from suites.changing_shards import ChangingShards
from suites.codec_oracle import planes_of, symbols_of

VALUES = 100 * DEFAULT_BLOCK + 37


def exponents(shards: ChangingShards, state: int) -> torch.Tensor:
    return torch.from_numpy(symbols_of(shards.of(1, 0, state), shards.layout)).int()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.dtype))
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("clustered", [False, True])
def test_the_rate_is_that_of_exponents(layout: FloatLayout, rate: float, clustered: bool) -> None:
    shards = ChangingShards(VALUES, layout, rate, clustered, seed=3)
    moved = exponents(shards, 1) - exponents(shards, 0)
    differing = float((moved != 0).float().mean())
    # Blocks are counted whole, and in float16 some values are subnormal: their exponent stays when they are doubled.
    assert differing == pytest.approx(rate, rel=0.03 if clustered or layout.exponent_bits == 5 else 1e-3)
    assert set(moved.tolist()) <= {-1, 0, 1}
    if rate > 0:
        up = float((moved[moved != 0] > 0).float().mean())
        assert up == pytest.approx(0.5, abs=0.1)


def test_signs_and_mantissas_stay() -> None:
    shards = ChangingShards(VALUES, BF16, 1.0, False, seed=0)
    rests = [planes_of(shards.of(0, 0, state), BF16)[1].tobytes() for state in (0, 1)]
    assert rests[0] == rests[1]


def test_clusters_are_whole_blocks() -> None:
    shards = ChangingShards(VALUES, BF16, 0.25, True, seed=0)
    moved = (exponents(shards, 1) != exponents(shards, 0)).split(DEFAULT_BLOCK)
    shares = [float(block.float().mean()) for block in moved]
    assert set(shares) == {0.0, 1.0}
    assert sum(shares) == round(0.25 * 101)


def test_every_rank_and_layer_has_its_own_and_always_the_same() -> None:
    shards = ChangingShards(1000, BF16, 0.1, False, seed=0)
    of_all = [shards.of(rank, layer, state) for rank in (0, 1) for layer in (0, 1) for state in (0, 1)]
    assert all(torch.equal(a, b) == (a is b) for a in of_all for b in of_all)
    assert torch.equal(shards.of(1, 1, 1), of_all[-1])
    other = ChangingShards(1000, BF16, 0.1, False, seed=1)
    assert not torch.equal(other.of(0, 0, 0), of_all[0])
