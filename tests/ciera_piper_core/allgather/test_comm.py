"""Comm(x) from points and from profiles: between points, beyond them, and which of several curves counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ciera_piper_core.allgather.comm import Comm, profile_comm

PROFILE = Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"


def curve(latency_us: float = 100.0, **fields: Any) -> dict[str, Any]:
    """An entry of ``collectives`` whose latency is the same for all sizes."""
    points = [{"bytes": size, "latency_us": latency_us, "settled": True} for size in (1 << 12, 1 << 20)]
    entry = {
        "suite": "allgather_latency",
        "op": "all_gather",
        "algorithm": "library",
        "traffic": "uniform",
        "dtype": "bfloat16",
        "scope": "loopback",
        "lab": "",
        "ranks": 4,
        "nodes": 1,
        "points": points,
    }
    return {**entry, **fields}


def test_measured_points_are_themselves_and_lines_on_logarithmic_axes_between() -> None:
    comm = Comm.from_points([(1000.0, 1e-4), (100_000.0, 1e-2)], 2, 1, "x")
    assert comm.seconds_at([1000, 100_000]) == pytest.approx([1e-4, 1e-2])
    assert float(comm.seconds_at(10_000)) == pytest.approx(1e-3)
    assert comm.note([1000, 100_000]) == ""


def test_beyond_the_points_it_says_so() -> None:
    comm = Comm.from_points([(1000.0, 1e-4), (100_000.0, 1e-2)], 2, 1, "x")
    assert float(comm.seconds_at(10)) == pytest.approx(1e-4)
    assert float(comm.seconds_at(1_000_000)) == pytest.approx(0.1)
    assert comm.note([10, 1000, 1_000_000]) == (
        "Comm is extrapolated for 2 of 3 payload size(s): measured from 1,000 to 100,000 bytes a rank"
    )


def test_a_profile_counts_bytes_of_all_ranks_and_comm_those_of_one() -> None:
    comm = profile_comm([curve()], 4)
    assert list(comm.curve.sizes) == [1 << 10, 1 << 18]
    assert comm.curve.seconds == pytest.approx([1e-4, 1e-4])
    assert (comm.ranks, comm.nodes, comm.scope, comm.unsettled) == (4, 1, "loopback", 0)
    assert comm.source == "allgather_latency, 4 ranks on 1 node(s), loopback"


def test_a_real_profile_has_it() -> None:
    collectives = json.loads(PROFILE.read_text())["collectives"]
    comm = profile_comm(collectives, 2)
    measured = next(c for c in collectives if c["suite"] == "allgather_latency" and c["ranks"] == 2)
    assert len(comm.curve.sizes) == len(measured["points"])
    assert comm.unsettled == sum(not point["settled"] for point in measured["points"])
    assert np.all(np.diff(comm.curve.seconds) >= 0)


@pytest.mark.parametrize(
    "other",
    [
        {"suite": "collectives"},
        {"scope": "lab", "lab": "nodes=2", "nodes": 2},
        {"nodes": 2, "scope": "cluster"},
        {"dtype": "float32"},
    ],
)
def test_the_densest_suite_on_the_fewest_real_nodes_counts(other: dict[str, Any]) -> None:
    wanted = curve(100.0)
    for entries in ([wanted, curve(300.0, **other)], [curve(300.0, **other), wanted]):
        assert float(profile_comm(entries, 4).seconds_at(4096)) == pytest.approx(1e-4)


def test_scope_and_nodes_can_be_asked_for() -> None:
    entries = [curve(100.0), curve(300.0, scope="lab", lab="nodes=2", nodes=2)]
    assert profile_comm(entries, 4, scope="lab").source.endswith("lab nodes=2")
    assert float(profile_comm(entries, 4, nodes=2).seconds_at(4096)) == pytest.approx(3e-4)


@pytest.mark.parametrize(
    "useless",
    [
        {"op": "all_to_all"},
        {"suite": "allgather_compressed"},
        {"algorithm": "flat ring"},
        {"traffic": "zipf"},
        {"ranks": 8},
        {"ranks": 1},
    ],
)
def test_what_is_no_plain_gather_of_these_ranks_does_not_count(useless: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no all_gather of 4 ranks"):
        profile_comm([curve(**useless)], 4)


def test_a_missing_curve_names_those_that_there_are() -> None:
    entries = [curve(ranks=2), curve(ranks=8, nodes=2, scope="cluster")]
    with pytest.raises(ValueError, match="no all_gather of 4 ranks on 3 node") as caught:
        profile_comm(entries, 4, nodes=3)
    assert "2 ranks on 1 node(s), loopback, 8 ranks on 2 node(s), cluster" in str(caught.value)
    assert "--ranks 4" in str(caught.value)
    with pytest.raises(ValueError, match="it has none at all"):
        profile_comm([], 2)
