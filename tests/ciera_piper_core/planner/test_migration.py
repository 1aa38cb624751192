"""Cost of moving experts: the paper's formula, in true units."""

from __future__ import annotations

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.migration import Migration, migration_of


def test_the_cost_is_sixteen_bytes_a_parameter_over_the_group() -> None:
    cost = Migration("deepseek-v3", 256, 7168, 2048, 3)
    assert cost.bytes_per_gpu == 48 * 256 * 7168 * 2048 / 8 == 22_548_578_304
    assert cost.seconds == pytest.approx(0.45097, rel=1e-4)
    assert cost.expected_bytes_per_gpu == cost.bytes_per_gpu * 7 / 8


def test_it_follows_from_an_architecture() -> None:
    architecture = catalogue.load("deepseek-v3")
    assert migration_of(architecture).bytes_per_gpu == 22_548_578_304
    assert migration_of(architecture, gpus=64, bandwidth_bytes_s=25e9).seconds == 22_548_578_304 / 8 / 25e9


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus must be 1 or more, not 0"):
        Migration("any", 8, 16, 16, 3, gpus=0)
