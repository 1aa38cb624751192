"""Tests of exchange times: against byte counts pair by pair, Piper's measurements, curves, and their growth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.planner import communication as comm
from ciera_piper_core.platforms import Platform, load_platform, names
from ciera_piper_core.platforms.platform import Congestion, Messages

PROFILE = Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"
FRONTIER = load_platform("frontier")
MEASURED = load_platform(str(PROFILE))
COLLECTIVES = (comm.all_reduce_seconds, comm.all_gather_seconds, comm.reduce_scatter_seconds)
NO_MESSAGES = Messages(0.0, 0.0)
FLUID = replace(FRONTIER, message_seconds=NO_MESSAGES, congestion=Congestion(), taper=1.0)
"""Bytes over rates, and nothing else."""

RANKS = st.integers(1, 4096)
BYTES = st.floats(1, 1e11)
ALGORITHMS = st.sampled_from(comm.ALL_TO_ALL)
MIB = 1 << 20


def all_to_all_by_pairs(ranks: int, bytes_per_gpu: float, platform: Platform) -> tuple[float, float]:
    """Intra-node and inter-node seconds of the busiest device and NIC, from every pair of ranks."""
    node = np.arange(ranks) // platform.gpus_per_node
    pairs = np.full((ranks, ranks), bytes_per_gpu / ranks) * ~np.eye(ranks, dtype=bool)
    here = node[:, None] == node
    inside = (pairs * here).sum(axis=1).max()
    leaving = np.array([(pairs * ~here)[node == one].sum() for one in np.unique(node)]).max()
    intra = platform.link("all_to_all", crosses=False).bytes_s
    nic = platform.link("all_to_all", crosses=True).bytes_s
    return inside / intra, leaving / platform.nics_per_node / nic


@pytest.mark.parametrize("ranks", [1, 2, 8, 16, 64, 128])
def test_a_flat_exchange_moves_what_every_pair_of_ranks_has(ranks: int) -> None:
    parts = comm.all_to_all_parts(FLUID, 64 * MIB, ranks)
    intra, inter = all_to_all_by_pairs(ranks, 64 * MIB, FLUID)
    assert float(parts["intra_node"]) == pytest.approx(intra)
    assert float(parts["inter_node"]) == pytest.approx(inter)


@pytest.mark.parametrize("platform", [load_platform(name) for name in names()], ids=names())
@given(share=st.floats(0, 1), data=BYTES, algorithm=ALGORITHMS)
def test_inside_a_node_no_nic_is_used(platform: Platform, share: float, data: float, algorithm: Any) -> None:
    ranks = max(1, round(share * platform.gpus_per_node))
    parts = comm.all_to_all_parts(platform, data, ranks, algorithm)
    assert float(parts["inter_node"]) == 0
    without_network = replace(platform, nic_bytes_s=0.0)
    expected = comm.all_to_all_seconds(platform, data, ranks, algorithm)
    assert float(comm.all_to_all_seconds(without_network, data, ranks, algorithm)) == float(expected)


def test_the_specifications_bound() -> None:
    """``2 b s k d (EP-g)/EP * (GPUs per NIC)/B_NIC`` for a dispatch (spec of Piper, communication)."""
    tokens, top_k, hidden, ep = 16384, 8, 7168, 64
    rows = comm.dispatch_bytes(tokens, top_k, hidden)
    assert float(rows) == 2 * tokens * top_k * hidden
    expected = rows * (ep - 8) / ep * 2 / (25e9 * 0.8)
    assert float(comm.all_to_all_parts(FLUID, rows, ep)["inter_node"]) == pytest.approx(float(expected))


def test_messages_are_named_and_counted() -> None:
    counted = replace(FLUID, message_seconds=Messages(1.0, 1000.0))
    messages = {name: float(comm.all_to_all_parts(counted, 0, 64, name)["messages"]) for name in comm.ALL_TO_ALL}
    assert messages == {"flat": 7 + 56_000, "two_phase": 7 + 7_000, "halo": 14 + 7_000}


def test_halo_hides_its_first_phase_behind_the_second() -> None:
    parts = comm.all_to_all_parts(FLUID, 64 * MIB, 64, "halo")
    first = 64 * MIB * 7 / 64 / 50e9
    assert float(parts["overlapped"]) == pytest.approx(-first)
    third = 64 * MIB * (56 / 64) * (7 / 8) / 50e9
    assert float(parts["intra_node"]) == pytest.approx(first + third)
    assert float(comm.all_to_all_seconds(FLUID, 64 * MIB, 64, "halo")) == pytest.approx(
        float(parts["inter_node"]) + third + float(parts["packing"])
    )


def test_halo_against_flat_is_as_piper_measured() -> None:
    """On par below 16 nodes, 1.1 to 9 times faster from there on (Piper, section V-D), for 2 MB and more a rank."""
    sizes = np.geomspace(2.1e6, 4.3e9, 12)

    def speedups(nodes: int) -> Any:
        flat, halo = (comm.all_to_all_seconds(FRONTIER, sizes, 8 * nodes, name) for name in ("flat", "halo"))
        return flat / halo

    for nodes in (1, 2, 4):
        assert 0.85 < np.median(speedups(nodes)) < 1.15, nodes
    assert 0.9 < np.median(speedups(8)) < 1.3
    for nodes in (16, 32, 64, 128, 256, 512):
        assert (speedups(nodes) > 1.1).all(), nodes
        assert (speedups(nodes) < 9).all(), nodes


def test_a_fluid_model_alone_makes_halo_slower() -> None:
    flat, halo = (float(comm.all_to_all_seconds(FLUID, 64 * MIB, 128, name)) for name in ("flat", "halo"))
    assert halo > flat


def test_traffic_that_leaves_a_group_is_slower() -> None:
    flat_network = replace(FRONTIER, taper=1.0)
    for ranks, slower in ((1024, False), (4096, True)):
        tapered, full = (comm.all_to_all_seconds(p, 64 * MIB, ranks, "halo") for p in (FRONTIER, flat_network))
        assert bool(tapered > full) is slower


@given(BYTES, st.floats(1, 100), RANKS, ALGORITHMS)
def test_more_bytes_are_never_faster(data: float, factor: float, ranks: int, algorithm: Any) -> None:
    for platform in (FRONTIER, MEASURED):
        group = min(ranks, platform.max_gpus)
        few, many = comm.all_to_all_seconds(platform, [data, data * factor], group, algorithm)
        assert 0 <= few <= many * (1 + 1e-9)
        assert bool(few > 0) is (group > 1)
        for collective in COLLECTIVES:
            few, many = collective(platform, [data, data * factor], group)
            assert 0 <= few <= many * (1 + 1e-9)
            assert bool(few > 0) is (group > 1)


@given(BYTES, RANKS, ALGORITHMS, st.integers(1, 8), st.integers(0, 7))
def test_more_sharing_of_nics_is_never_faster(data: float, ranks: int, algorithm: Any, nics: int, fewer: int) -> None:
    more = replace(FRONTIER, nics_per_node=nics)
    less = replace(FRONTIER, nics_per_node=max(1, nics - fewer))
    assert comm.all_to_all_seconds(less, data, ranks, algorithm) >= comm.all_to_all_seconds(
        more, data, ranks, algorithm
    )
    assert comm.point_to_point_seconds(less, data, True) >= comm.point_to_point_seconds(more, data, True)
    for collective in COLLECTIVES:
        assert collective(less, data, ranks) >= collective(more, data, ranks)


@given(BYTES, st.integers(2, 4096), ALGORITHMS, st.floats(1, 10))
def test_imbalance_is_never_faster(data: float, ranks: int, algorithm: Any, load: float) -> None:
    even = comm.all_to_all_seconds(FRONTIER, data, ranks, algorithm)
    skewed = comm.all_to_all_seconds(FRONTIER, data, ranks, algorithm, load)
    assert even <= skewed <= load * even * (1 + 1e-9)


@given(st.floats(1e3, 1e11), st.integers(2, 4096), st.sampled_from([*comm.ALL_TO_ALL, *COLLECTIVES]))
def test_no_exchange_is_faster_than_its_links(data: float, ranks: int, operation: Any) -> None:
    """What leaves a device, over all that it has of its fabric and of the NICs."""
    leaves = data * (ranks - 1) / ranks
    if callable(operation):
        seconds = float(operation(FRONTIER, data, ranks))
        most = max(FRONTIER.intra_node_bytes_s, FRONTIER.nics_per_node * FRONTIER.nic_bytes_s)
    else:
        seconds = float(comm.all_to_all_seconds(FRONTIER, data, ranks, operation))
        most = FRONTIER.intra_node_bytes_s + FRONTIER.nic_bytes_s
    assert leaves / seconds <= most


def test_a_group_spread_over_nodes_uses_the_network() -> None:
    packed, spread = (
        float(comm.all_to_all_seconds(FRONTIER, 64 * MIB, 8, ranks_per_node=per_node)) for per_node in (8, 1)
    )
    assert spread > packed
    packed, spread = (
        float(comm.all_reduce_seconds(FRONTIER, 64 * MIB, 8, ranks_per_node=per_node)) for per_node in (8, 1)
    )
    assert spread > packed


def test_a_ring_over_nodes_has_all_nics_if_it_has_the_node() -> None:
    whole = float(comm.all_gather_seconds(FLUID, 1e9, 16))
    # 50 GB/s inside a node; 4 NICs of 20 GB/s reached between nodes: the fabric is the slower.
    assert whole == pytest.approx(1e9 * 15 / 16 / 50e9)
    alone = float(comm.all_gather_seconds(FLUID, 1e9, 16, ranks_per_node=1))
    # Eight such groups share the four NICs.
    assert alone == pytest.approx(1e9 * 15 / 16 * 2 / 20e9)
    assert float(comm.all_reduce_seconds(FLUID, 1e9, 16)) == pytest.approx(2 * whole)


def test_small_sums_go_by_tree() -> None:
    counted = replace(FLUID, message_seconds=Messages(1.0, 10.0))
    # 128 nodes: 7 levels; 7 messages inside; both ways.
    assert float(comm.all_reduce_seconds(counted, 0.0, 1024)) == pytest.approx(2 * (7 * 1 + 7 * 10))
    assert float(comm.all_reduce_seconds(counted, 0.0, 2)) == pytest.approx(2)


def test_point_to_point() -> None:
    seconds = comm.point_to_point_seconds(FLUID, 1e9, [False, True])
    assert seconds == pytest.approx([1e9 / 50e9, 1e9 * 2 / 20e9])
    assert float(comm.point_to_point_seconds(FLUID, 1e9, True, side_by_side=1)) == pytest.approx(1e9 / 20e9)
    assert comm.point_to_point_seconds(FRONTIER, np.ones((3, 1)), [False, True]).shape == (3, 2)


@given(st.lists(RANKS, min_size=1, max_size=6), BYTES, ALGORITHMS)
def test_many_groups_at_once_are_the_same_as_one_by_one(ranks: list[int], data: float, algorithm: Any) -> None:
    for platform in (FRONTIER, MEASURED):
        groups = [min(n, platform.max_gpus) for n in ranks]
        together = comm.all_to_all_seconds(platform, data, groups, algorithm)
        alone = [float(comm.all_to_all_seconds(platform, data, n, algorithm)) for n in groups]
        np.testing.assert_allclose(together, alone)


def curve_of(op: str, suite: str, ranks: int) -> dict[str, Any]:
    curves = json.loads(PROFILE.read_text())["collectives"]
    keys = ("op", "suite", "ranks", "traffic")
    found: dict[str, Any] = next(c for c in curves if tuple(c[key] for key in keys) == (op, suite, ranks, "uniform"))
    return found


@pytest.mark.parametrize(
    ("op", "suite", "ranks", "seconds"),
    [
        ("all_to_all", "alltoall", 4, comm.all_to_all_seconds),
        ("all_reduce", "collectives", 2, comm.all_reduce_seconds),
        ("all_gather", "collectives", 2, comm.all_gather_seconds),
        ("reduce_scatter", "collectives", 2, comm.reduce_scatter_seconds),
    ],
)
def test_measured_ranks_have_their_own_curve(op: str, suite: str, ranks: int, seconds: Any) -> None:
    points = curve_of(op, suite, ranks)["points"]
    largest = points[-1]
    assert float(seconds(MEASURED, largest["bytes"], ranks)) == pytest.approx(largest["latency_us"] * 1e-6)
    term = comm.origin(MEASURED, op, largest["bytes"], ranks)
    assert term.status == "measured"
    dtype = "bfloat16" if suite == "alltoall" else "float32"
    unsettled = sum(not point["settled"] for point in points)
    assert term.text == (
        f"{suite}, {dtype}, {ranks} ranks on 1 node(s), scope loopback, {unsettled} of {len(points)} points not settled"
    )
    beyond = comm.origin(MEASURED, op, 2 * largest["bytes"], ranks)
    assert "extrapolated" in beyond.text


def test_other_ranks_say_that_they_are_fitted_or_extrapolated() -> None:
    assert comm.origin(MEASURED, "all_to_all", 1 * MIB, 3).text.startswith("by message cost and rate of alltoall")
    assert comm.origin(MEASURED, "all_reduce", 1 * MIB, 4).text.startswith("extrapolated from collectives")
    assert comm.origin(FRONTIER, "all_to_all", 1 * MIB, 16) == FRONTIER.terms["inter_node"]
    assert comm.origin(FRONTIER, "all_to_all", 1 * MIB, 1).text == "one rank: nothing to exchange"


def test_an_algorithm_that_was_not_measured_goes_by_the_formulas() -> None:
    assert "measured" in comm.all_to_all_parts(MEASURED, MIB, 4, "flat")
    assert "measured" not in comm.all_to_all_parts(MEASURED, MIB, 4, "halo")


def test_a_network_that_was_not_measured_is_not_made_up() -> None:
    message = "nothing was measured between nodes; run `bench characterize` over two nodes or more"
    with pytest.raises(ValueError, match=message):
        comm.all_to_all_seconds(MEASURED, MIB, [4, 8])
    with pytest.raises(ValueError, match=message):
        comm.all_reduce_seconds(MEASURED, MIB, 8)
    with pytest.raises(ValueError, match=message):
        comm.point_to_point_seconds(MEASURED, MIB, True)
    with pytest.raises(ValueError, match=message):
        MEASURED.require_gpus(8)


def test_overlap_is_declared() -> None:
    overlap = comm.Overlap(all_to_all=0.5)
    assert overlap.describe().startswith("hidden behind computation (declared): all_to_all 50%, point_to_point 0%")
    assert comm.exposed_seconds([4.0, 4.0], [10.0, 1.0], 0.5).tolist() == [2, 3]
    assert comm.exposed_seconds(4.0, 10.0, comm.Overlap().all_to_all) == 4
    with pytest.raises(ValueError, match=r"overlap of data_parallel must be from 0 to 1, not 1\.5"):
        comm.Overlap(data_parallel=1.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 8, "ring"), "unknown all-to-all 'ring'; known: flat, two_phase, halo"),
        ((1.0, 0, "flat"), "at least 1 rank"),
        ((-1.0, 8, "flat"), "bytes that are not negative"),
        ((1.0, 8, "flat", 0.5), "load_factor must be at least 1"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        comm.all_to_all_seconds(FRONTIER, *arguments)


def test_a_node_holds_no_more_ranks_than_devices() -> None:
    with pytest.raises(ValueError, match="ranks_per_node must be 1 to 8"):
        comm.all_gather_seconds(FRONTIER, MIB, 64, ranks_per_node=16)
