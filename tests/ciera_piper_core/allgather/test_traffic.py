"""What gathers carry: sizes as the coder has them, and assumed rates that behave as real changes do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.allgather.traffic import MODES, GatherTraffic, Mode, assumed_shard
from ciera_piper_core.exponents.backend import backend
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import BF16, FP16, FP32, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.segment import CodingSettings, SegmentDecoder, SegmentEncoder
from tests.ciera_piper_core.allgather.gain_cases import gather, shard

REFERENCE = backend("reference")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.dtype))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("values", [1, 63, 512, 513, 100_000])
def test_sizes_are_those_of_the_coder(layout: FloatLayout, mode: Mode, values: int) -> None:
    world, block = 5, 64
    one = shard("w", values)
    carried = gather(one, layout=layout, block=block, mode=mode)
    encoder = SegmentEncoder(values, layout, CodingSettings(mode, block), REFERENCE)
    decoder = SegmentDecoder(values, layout, block, REFERENCE)
    assert carried.fixed_bytes(one) == encoder.fixed_bytes
    assert carried.cache_bytes(one, world) == encoder.state_bytes + (world - 1) * decoder.state_bytes
    assert carried.plain_bytes(one) == values * layout.value_bytes


def test_a_shard_without_values_has_no_bytes() -> None:
    none = shard("w", 0)
    carried = gather(none)
    assert (carried.plain_bytes(none), carried.fixed_bytes(none), carried.cache_bytes(none, 4)) == (0, 0, 0)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(MODES),
    st.sampled_from(BLOCKS),
    st.sampled_from(LAYOUTS),
    st.integers(0, 10**7),
    st.floats(0, 1),
    st.integers(0, 3),
)
def test_assumed_traffic_is_within_what_can_be(
    mode: Mode, block: int, layout: FloatLayout, values: int, rate: float, still: int
) -> None:
    one = assumed_shard("w", "other", values, layout, block, mode, rate, unchanged_gathers=still)
    assert one.changed.size == one.coded_bytes.size == 1 + still
    assert 0 <= one.changed[0] <= 1
    assert 0 <= one.coded_bytes[0] <= layout.exponent_bytes(values) + 1e-6
    assert not one.changed[1:].any()
    assert not one.coded_bytes[1:].any()


@pytest.mark.parametrize("mode", MODES)
def test_more_changes_take_more_bytes(mode: Mode) -> None:
    rates = [0.0, 1e-4, 1e-3, 0.01, 0.05, 0.3, 1.0]
    sizes = [float(assumed_shard("w", "x", 1 << 20, BF16, 512, mode, rate).coded_bytes[0]) for rate in rates]
    assert sizes[0] == 0
    assert all(fewer <= more for fewer, more in pairwise(sizes))


def test_auto_is_the_smaller_of_the_two() -> None:
    for rate in (0.001, 0.1, 1.0):
        block, delta, auto = (
            float(assumed_shard("w", "x", 1 << 20, BF16, 512, mode, rate).coded_bytes[0]) for mode in MODES
        )
        assert auto == min(block, delta)


def test_few_changes_anywhere_change_nearly_every_block_and_code_to_little() -> None:
    # The target of the coder: at most 0.015 bytes an exponent byte at 0.5 %.
    one = assumed_shard("w", "x", 1 << 20, BF16, 512, "delta", 0.005)
    assert one.changed[0] == pytest.approx(1 - 0.995**512)
    assert 0.005 < one.coded_bytes[0] / (1 << 20) < 0.015


def test_a_block_rate_concentrates_the_changes() -> None:
    spread = assumed_shard("w", "x", 1 << 20, BF16, 512, "block", 0.005)
    dense = assumed_shard("w", "x", 1 << 20, BF16, 512, "block", 0.005, block_rate=0.22)
    assert dense.changed[0] == 0.22
    assert dense.coded_bytes[0] == pytest.approx(spread.coded_bytes[0] * 0.22 / spread.changed[0])


def test_exponents_of_five_bits_code_to_no_more_than_that() -> None:
    one = assumed_shard("w", "x", 1 << 20, FP16, 512, "block", 1.0, entropy_bits=8.0)
    assert one.coded_bytes[0] == (1 << 20) * 5 / 8


@pytest.mark.parametrize("rates", [{"element_rate": -0.1}, {"element_rate": 1.1}, {"element_rate": np.nan}])
def test_rates_that_cannot_be_are_refused(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="change rate must be from 0 to 1"):
        assumed_shard("w", "x", 10, BF16, 512, "auto", **rates)
    with pytest.raises(ValueError, match="block change rate"):
        assumed_shard("w", "x", 10, BF16, 512, "auto", 0.1, block_rate=2.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"values": -1}, "-1 values"),
        ({"changed": [1.5]}, "from 0 to 1"),
        ({"changed": [np.nan]}, "from 0 to 1"),
        ({"coded": [-1.0]}, "0 or more"),
        ({"coded": [np.inf]}, "0 or more"),
        ({"coded": [1.0, 2.0]}, "one share and one size a gather"),
        ({"changed": [], "coded": []}, "at least one gather"),
    ],
)
def test_traffic_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shard("w", **{"values": 10, **fields})


def test_gathers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="a block has 64, 128"):
        gather(shard("w", 10), block=100)
    with pytest.raises(ValueError, match="the mode is one of"):
        gather(shard("w", 10), mode="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seen \[1, 2\] gathers"):
        gather(shard("a", 10), shard("b", 10, [0, 0], [0, 0]))
    with pytest.raises(ValueError, match="not all the same"):
        GatherTraffic("empty", FP32, 512, "auto", ())
