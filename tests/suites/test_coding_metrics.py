"""What the coding suites' numbers mean: units, directions, and how they follow from durations."""

from __future__ import annotations

from bench.definitions import DEFINITIONS, Definition, Work
from suites.coding_metrics import (
    BYTE_RATIO,
    CODED_OVER_ENTROPY,
    CODED_RATIO,
    ORIGINAL_THROUGHPUT,
    RATIO_TO_MEMCPY,
    SPEEDUP_OVER_PLAIN,
)


def test_units_and_directions() -> None:
    def nature(definition: Definition) -> tuple[str, str]:
        return definition.unit, definition.better

    assert nature(ORIGINAL_THROUGHPUT) == ("GB/s", "higher")
    assert nature(RATIO_TO_MEMCPY) == nature(SPEEDUP_OVER_PLAIN) == ("ratio", "higher")
    assert nature(CODED_OVER_ENTROPY) == nature(CODED_RATIO) == nature(BYTE_RATIO) == ("ratio", "lower")


def test_values_follow_from_durations() -> None:
    assert ORIGINAL_THROUGHPUT.value is not None
    assert ORIGINAL_THROUGHPUT.value(0.5, Work(bytes=10**9)) == 2
    for definition in (RATIO_TO_MEMCPY, SPEEDUP_OVER_PLAIN):
        assert definition.against_baseline is not None
        assert definition.against_baseline(0.5, 0.25, Work()) == 0.5


def test_sizes_are_observed() -> None:
    for definition in (CODED_OVER_ENTROPY, CODED_RATIO, BYTE_RATIO):
        assert definition.value is None
        assert definition.against_baseline is None
        assert DEFINITIONS[definition.id] is definition
