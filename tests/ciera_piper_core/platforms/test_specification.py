"""Tests of the built-in machines: their public figures, their units, and that every term says how it is known."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.platforms import load_platform, names, specification
from ciera_piper_core.platforms.platform import TERMS

TABLES = tomllib.loads(files("ciera_piper_core.platforms").joinpath("specifications.toml").read_text())
EDGES = st.integers(1, 30_000)


@pytest.mark.parametrize(
    ("name", "memory_gb", "bandwidth_tb_s", "peak_tflop_s", "nics", "nic_gb_s"),
    [
        ("frontier", 64, 1.6, 191.5, 4, 25),
        ("dgx-a100", 80, 2.039, 312, 8, 25),
        ("dgx-h200", 141, 4.8, 989, 8, 50),
    ],
)
def test_public_figures(
    name: str, memory_gb: float, bandwidth_tb_s: float, peak_tflop_s: float, nics: int, nic_gb_s: float
) -> None:
    platform = load_platform(name)
    assert platform.gpus_per_node == 8
    assert platform.memory_bytes == memory_gb * 10**9
    assert platform.memory_bandwidth_bytes_s == pytest.approx(bandwidth_tb_s * 1e12)
    assert platform.peak_flops["bfloat16"] == pytest.approx(peak_tflop_s * 1e12)
    assert (platform.nics_per_node, platform.nic_bytes_s) == (nics, nic_gb_s * 1e9)


def test_peaks_are_dense() -> None:
    """Sparse figures are twice these: 624 for an A100, 1979 for an H200 in bf16."""
    assert max(load_platform("dgx-a100").peak_flops.values()) == 312e12
    h200 = load_platform("dgx-h200").peak_flops
    assert h200["bfloat16"] == 989e12
    assert h200["float8_e4m3fn"] == pytest.approx(2 * 989e12, rel=1e-3)


def test_frontier_is_a_dragonfly() -> None:
    frontier = load_platform("frontier")
    assert frontier.gpus_per_nic == 2
    assert (frontier.single_hop_nodes, frontier.group_nodes) == (4, 128)
    # 512 endpoints of 200 Gb/s a group; 4 links of 200 Gb/s to each of 73 other groups.
    assert frontier.taper == pytest.approx(512 * 200 / (4 * 73 * 200), rel=1e-3)
    assert frontier.max_gpus == 9856 * 8


@pytest.mark.parametrize("name", names())
def test_every_term_says_how_it_is_known(name: str) -> None:
    platform = load_platform(name)
    lines = platform.describe()
    assert [line.partition(": ")[0] for line in lines] == list(TERMS)
    assert all(line.split(": ")[1] in ("specified", "assumed") for line in lines)
    assert platform.measured == frozenset()
    assert platform.peak_source == str(platform.terms["peak"])
    assert not any("GiB" in line for line in lines)


@pytest.mark.parametrize("name", names())
@given(m=EDGES, n=EDGES, k=EDGES)
def test_no_rate_is_above_the_peak(name: str, m: int, n: int, k: int) -> None:
    platform = load_platform(name)
    assert 0 < float(platform.matmul_flops_s(m, n, k)) < platform.peak
    assert 0 < float(platform.expert_flops_s(m, n, k)) < platform.peak
    assert 0 < float(platform.expert_flops_s(m, n, k, backward=True)) < platform.peak


def test_tall_skinny_experts_are_slow() -> None:
    frontier = load_platform("frontier")
    rates = frontier.expert_flops_s([1, 16, 128, 1024, 16384], 7168, 2048, experts=32)
    assert all(left < right for left, right in itertools.pairwise(rates))
    # One token an expert reads each weight for two operations: one operation a byte at 80 % of 1.6 TB/s.
    assert rates[0] == pytest.approx(0.8 * 1.6e12, rel=0.02)
    assert rates[-1] > 0.6 * frontier.peak


def test_another_dtype_has_its_own_peak() -> None:
    single = load_platform("dgx-a100", "fp32")
    assert (single.dtype, single.peak, single.element_bytes) == ("float32", 19.5e12, 4)
    assert float(single.matmul_flops_s(8192, 8192, 8192)) < single.peak
    assert load_platform("dgx-a100", "bf16").dtype == "bfloat16"


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"neither a built-in platform \(frontier, .*\) nor a profile; .*characterize"):
        load_platform("summit")
    with pytest.raises(ValueError, match=r"'mine.toml' is a machine file, which `bench simulate` takes: .*profile"):
        load_platform("mine.toml")
    with pytest.raises(ValueError, match="unknown platform 'summit'; built in: frontier"):
        specification.load("summit")
    with pytest.raises(ValueError, match="computes in bfloat16, float16, float32, not 'int8'"):
        load_platform("frontier", "int8")


def test_more_devices_than_there_are() -> None:
    frontier = load_platform("frontier")
    frontier.require_gpus(frontier.max_gpus)
    with pytest.raises(ValueError, match="1 to 78848 devices, not 78849"):
        frontier.require_gpus(78849)


def test_no_heavy_package_is_loaded() -> None:
    """A plan must answer in seconds, and torch alone takes two."""
    modules = ("platforms", "planner.compute", "planner.communication")
    imports = "; ".join(f"import ciera_piper_core.{module}" for module in modules)
    code = (
        f"{imports}; import sys; print(*sorted({{'torch', 'scipy', 'pandas', 'bench', 'suites'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def broken(change: dict[str, Any]) -> dict[str, Any]:
    table = copy.deepcopy(TABLES["frontier"])
    for key, value in change.items():
        if value is None:
            del table[key]
        else:
            table[key] = value
    return table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": None}, "lacks 'memory_bytes'"),
        ({"memory_gib": 60}, "unknown key 'memory_gib'"),
        ({"sources": TABLES["frontier"]["sources"] | {"peak": "191.5"}}, "sources.peak' must begin with"),
        ({"sources": {}}, "lacks 'peak'"),
        ({"efficiency": TABLES["frontier"]["efficiency"] | {"speed": 1}}, "unknown key 'speed'"),
        ({"overhead_bytes": 65_000_000_000}, "overhead_bytes must be less"),
        ({"nics_per_node": 0}, "nics_per_node must be above 0"),
        ({"nic_share": 1.5}, "nic_share must be above 0 and at most 1"),
        ({"taper": 0.5}, "taper not below 1"),
        ({"memory_bandwidth_bytes_s": float("nan")}, "memory_bandwidth_bytes_s must be above 0"),
        ({"peak_flops": {"bfloat16": 0.0}}, "no peak of 0"),
    ],
)
def test_a_wrong_table_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        specification.parse("mine", broken(change))


def test_terms_cannot_be_left_out() -> None:
    platform = load_platform("frontier")
    with pytest.raises(ValueError, match=r"wrong: \['peak'\]"):
        replace(platform, terms={name: term for name, term in platform.terms.items() if name != "peak"})
