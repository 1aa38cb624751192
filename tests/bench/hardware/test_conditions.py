"""What changes while a machine runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from bench.hardware.conditions import read_conditions

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Tree


def test_clocks_governor_and_turbo_of_a_node(hgx: Path) -> None:
    state = read_conditions(hgx)
    assert (state.clock_mhz_min, state.clock_mhz_median, state.clock_mhz_max) == (3000.125,) * 3
    assert (state.governor, state.turbo) == ("powersave", True)


def test_boost_of_an_amd_node(amd_node: Path) -> None:
    state = read_conditions(amd_node)
    assert (state.governor, state.turbo, state.clock_mhz_max) == ("performance", True, None)


def test_governors_that_differ_are_all_named(tree: Tree) -> None:
    for policy, name in enumerate(("performance", "powersave", "performance")):
        tree.write(f"sys/devices/system/cpu/cpufreq/policy{policy}/scaling_governor", name)
    assert read_conditions(tree.root).governor == "performance,powersave"


def test_clock_of_a_processor_that_cpuinfo_is_silent_on(tree: Tree) -> None:
    tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2600000")
    assert read_conditions(tree.root).clock_mhz_median == 2600.0


def test_temperature_is_the_hottest_of_the_processors(tree: Tree) -> None:
    for index, (chip, millidegrees) in enumerate((("coretemp", 51000), ("coretemp", 64000), ("nvme", 90000))):
        tree.write(f"sys/class/hwmon/hwmon{index}/name", chip)
        tree.write(f"sys/class/hwmon/hwmon{index}/temp1_input", str(millidegrees))
    assert read_conditions(tree.root).temperature_c == 64.0


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("cpu  700 0 100 100 0 0 0 100 0 0", 0.1),
        ("cpu  0 0 0 0 0 0 0 0 0 0", None),
        ("cpu 1 2", None),
        ("intr x", None),
    ],
)
def test_stolen_time(tree: Tree, stat: str, expected: float | None) -> None:
    tree.write("proc/stat", f"{stat}\ncpu0 1 1 1 1 1 1 1 1 1 1")
    assert read_conditions(tree.root).steal_fraction == expected


@pytest.mark.parametrize(("text", "expected"), [("0.52 0.58 0.59 1/1 3", 0.52), ("nan", None), ("inf 1", None)])
def test_load_is_a_number_or_nothing(tree: Tree, text: str, expected: float | None) -> None:
    tree.write("proc/loadavg", text)
    assert read_conditions(tree.root).load_1min == expected


def test_huge_pages_are_those_in_brackets(tree: Tree) -> None:
    tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    assert read_conditions(tree.root).transparent_hugepages == "madvise"


def test_this_machine() -> None:
    before, state, after = os.getloadavg()[0], read_conditions(), os.getloadavg()[0]
    assert state.load_1min is not None
    assert min(before, after) - 0.01 <= state.load_1min <= max(before, after) + 0.01
    assert state.uptime_s is not None
    assert state.uptime_s > 0
    assert state.boot_id is not None
