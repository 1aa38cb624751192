"""The bound of a placement: known answers, properties, and the ceilings that follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import BUSBW_FACTORS, busbw_factor
from suites.placement_bound import (
    Capacity,
    LeastBytes,
    bound_seconds,
    bounded_work,
    least_bytes,
    least_bytes_of_traffic,
)

MIB = 1 << 20
GBIT = 10**9 / 8
"""Bytes a second of a link of 1 Gbit/s."""

placements = st.lists(st.integers(0, 3), min_size=2, max_size=9)


def blocks(nodes: int, ranks_per_node: int) -> list[int]:
    return [node for node in range(nodes) for _ in range(ranks_per_node)]


@pytest.mark.parametrize(
    ("op", "total", "node_link", "rank"),
    [
        # S = 24 over 2 nodes of 2 ranks: a share is 6.
        ("all_gather", 72, 12, 18),
        ("reduce_scatter", 72, 12, 18),
        ("all_reduce", 144, 24, 36),
        ("all_to_all", 72, 24, 18),
        ("broadcast", 72, 24, 24),
        ("send_recv", 96, 24, 24),
    ],
)
def test_least_bytes_over_two_nodes(op: str, total: float, node_link: float, rank: float) -> None:
    assert least_bytes(op, 24, blocks(2, 2)) == LeastBytes(total, node_link, rank)


@pytest.mark.parametrize("op", BUSBW_FACTORS)
def test_nothing_crosses_a_link_on_one_node(op: str) -> None:
    assert least_bytes(op, 24, [0, 0, 0]).node_link == 0


def test_uneven_nodes_are_bound_by_the_one_with_most_to_carry() -> None:
    # Ranks 0-2 on one node, rank 3 alone: the lone node takes in three shares of 6.
    assert least_bytes("all_gather", 24, [0, 0, 0, 1]).node_link == 18
    assert least_bytes("all_to_all", 24, [0, 0, 0, 1]).node_link == 18
    assert least_bytes("send_recv", 24, [0, 1, 0, 1]).node_link == 48


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_all_to_all_reaches_n_over_n_minus_1_times_the_nic(nodes: int) -> None:
    """With a NIC for each rank, the busbw that users expect: N/(N-1) x NIC, times (n-1)/n (NVIDIA/nccl-tests#130)."""
    nic, ranks_per_node, size = 12.5e9, 8, 64 * MIB
    ranks = nodes * ranks_per_node
    capacity = Capacity(fabrics=nodes * ranks_per_node * 400e9, node_link=ranks_per_node * nic, nodes=nodes)
    seconds = bound_seconds(least_bytes("all_to_all", size, blocks(nodes, ranks_per_node)), capacity)
    assert size / seconds == pytest.approx(nic * nodes / (nodes - 1))
    busbw = size / seconds * busbw_factor("all_to_all", ranks)
    assert busbw == pytest.approx(nic * nodes / (nodes - 1) * (ranks - 1) / ranks)


@pytest.mark.parametrize(
    ("op", "bytes_over_link"),
    [
        ("all_gather", 8 * MIB),
        ("reduce_scatter", 8 * MIB),
        ("all_reduce", 16 * MIB),
        ("all_to_all", 16 * MIB),
        ("broadcast", 16 * MIB),
        ("send_recv", 16 * MIB),
    ],
)
def test_a_lab_of_two_nodes_is_bound_by_its_links(op: str, bytes_over_link: float) -> None:
    capacity = Capacity(fabrics=4e9, node_link=GBIT, nodes=2, declared=True)
    assert bound_seconds(least_bytes(op, 16 * MIB, blocks(2, 2)), capacity) == pytest.approx(bytes_over_link / GBIT)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
def test_one_node_of_gpus_is_bound_by_busbw_at_the_ports_rate(op: str) -> None:
    port, size = 400e9, 64 * MIB
    capacity = Capacity(fabrics=8 * port, rank_port=port)
    seconds = bound_seconds(least_bytes(op, size, [0] * 8), capacity)
    assert size / seconds * busbw_factor(op, 8) == pytest.approx(port)


def test_a_hot_rank_is_bound_by_its_port_on_gpus_and_by_the_host_on_cpus() -> None:
    matrix = np.zeros((4, 4), dtype=np.int64)
    matrix[:, 0] = MIB
    least = least_bytes_of_traffic(matrix, [0] * 4)
    assert least == LeastBytes(3 * MIB, 0, 3 * MIB)
    assert bound_seconds(least, Capacity(fabrics=4e9, rank_port=1e9)) == pytest.approx(3 * MIB / 1e9)
    assert bound_seconds(least, Capacity(fabrics=4e9)) == pytest.approx(3 * MIB / 4e9)


@given(placements, st.integers(1, 1000))
def test_even_traffic_is_the_all_to_all(node_of_rank: list[int], share: int) -> None:
    ranks = len(node_of_rank)
    even = least_bytes_of_traffic(np.full((ranks, ranks), share, dtype=np.int64), node_of_rank)
    collective = least_bytes("all_to_all", share * ranks, node_of_rank)
    assert (even.total, even.node_link, even.rank) == pytest.approx(
        (collective.total, collective.node_link, collective.rank)
    )


@given(placements, st.data())
def test_direction_does_not_matter(node_of_rank: list[int], data: st.DataObject) -> None:
    ranks = len(node_of_rank)
    counts = data.draw(st.lists(st.integers(0, 99), min_size=ranks * ranks, max_size=ranks * ranks))
    matrix = np.array(counts, dtype=np.int64).reshape(ranks, ranks)
    assert least_bytes_of_traffic(matrix, node_of_rank) == least_bytes_of_traffic(matrix.T, node_of_rank)


@given(placements)
def test_no_ring_moves_less_than_the_least(node_of_rank: list[int]) -> None:
    """A ring all-gather, counted hop by hop: every share travels over all edges but one."""
    ranks, share = len(node_of_rank), 10
    out, into = dict.fromkeys(node_of_rank, 0), dict.fromkeys(node_of_rank, 0)
    for rank, here in enumerate(node_of_rank):
        there = node_of_rank[(rank + 1) % ranks]
        if here != there:
            out[here] += (ranks - 1) * share
            into[there] += (ranks - 1) * share
    least = least_bytes("all_gather", ranks * share, node_of_rank)
    assert least.total == pytest.approx(ranks * (ranks - 1) * share)
    assert least.node_link <= max(*out.values(), *into.values()) + 1e-9


@given(st.sampled_from(sorted(BUSBW_FACTORS)), placements)
def test_the_bound_grows_with_the_size(op: str, node_of_rank: list[int]) -> None:
    capacity = Capacity(fabrics=4e9, node_link=GBIT, nodes=len(set(node_of_rank)))
    one, two = (bound_seconds(least_bytes(op, size, node_of_rank), capacity) for size in (MIB, 2 * MIB))
    assert two == pytest.approx(2 * one)
    assert one > 0


def test_an_unknown_operation_has_no_bound() -> None:
    with pytest.raises(ValueError, match="no bound is known for 'gather'"):
        least_bytes("gather", 24, [0, 1])


def test_the_work_carries_the_bound_and_ceilings_beyond_it() -> None:
    work = bounded_work(64 * MIB, 0.5, least_bytes("all_gather", 64 * MIB, [0, 0]), Capacity(fabrics=4e9))
    assert work.bytes == 64 * MIB
    assert work.bound_seconds == pytest.approx(64 * MIB / 4e9)
    at_bound = {"algbw": 4.0, "busbw": 2.0, "share_of_bound": 1.0}
    assert {name: ceiling.value for name, ceiling in work.ceilings.items()} == pytest.approx(
        {name: 4 * value for name, value in at_bound.items()}
    )
    # A value that has been seen in the field from a program that moved no data.
    assert work.ceilings["busbw"].value < 263017


def test_a_declared_link_leaves_five_percent_and_a_burst() -> None:
    capacity = Capacity(fabrics=4e9, node_link=GBIT, nodes=2, declared=True)
    size = 64 * MIB
    work = bounded_work(size, 1.0, least_bytes("send_recv", size, [0, 1]), capacity)
    assert work.bound_seconds == pytest.approx(size / GBIT)
    beyond_burst = size / (size - MIB)
    assert work.ceilings["busbw"].value == pytest.approx(1.05 * beyond_burst * GBIT / 1e9)
    assert "declared" in work.ceilings["busbw"].source


def test_a_message_within_the_burst_may_outrun_the_declared_link() -> None:
    capacity = Capacity(fabrics=4e9, node_link=GBIT, nodes=2, declared=True)
    work = bounded_work(65536, 1.0, least_bytes("send_recv", 65536, [0, 1]), capacity)
    assert work.ceilings["busbw"].value > 4
    assert "raw transfers" in work.ceilings["busbw"].source


def test_traffic_that_crosses_nothing_has_no_ceiling() -> None:
    nothing = least_bytes_of_traffic(np.eye(3, dtype=np.int64), [0, 0, 1])
    work = bounded_work(1024, 1.0, nothing, Capacity(fabrics=4e9, node_link=GBIT, nodes=2))
    assert work.bound_seconds == 0
    assert work.ceilings == {}
