"""The closed form: the same numbers as the fluid engine under uniform traffic, for any size at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.simulate import ALGORITHMS, BOTTLENECKS
from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.flows import schedule, uniform_matrix
from ciera_piper_core.simulate.fluid import predict
from ciera_piper_core.simulate.job import Job
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.terms import Terms
from tests.ciera_piper_core.simulate.machines import SMALL

ALL_TERMS = Terms(
    message_intra_s=0.3,
    message_inter_s=0.7,
    phase_start_s=2.0,
    nic_messages_s=0.5,
    nic_sharing_loss=0.1,
    peers_that_halve=12,
    incast_most=2.5,
    rail_peers_that_halve=3,
    rail_incast_most=1.5,
    copy_bytes_s=80.0,
    overlap_share=0.7,
)


@given(
    st.sampled_from(sorted(SMALL)),
    st.sampled_from(ALGORITHMS),
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from([1.0, 500.0, 1e5]),
    st.booleans(),
    st.sampled_from([1.0, 0.45]),
)
@settings(max_examples=120, deadline=None)
def test_it_is_the_fluid_under_uniform_traffic(
    name: str, algorithm: str, ranks: int, per_node: int, size: float, with_terms: bool, sent_share: float
) -> None:
    if name == "shared port" and (algorithm == "halo_v1" or with_terms):
        return  # Flows of two lengths share a port; see below.
    if -(-ranks // per_node) > SMALL[name].network.max_nodes:
        return
    machine = replace(SMALL[name], terms=ALL_TERMS) if with_terms else SMALL[name]
    job = machine.job(ranks, per_node)
    plan = schedule(algorithm, job, uniform_matrix(ranks, size), sent_share=sent_share)  # type: ignore[arg-type]
    flow = predict(machine, plan, resolution=0)
    closed = UniformModel.build(machine, algorithm, ranks, per_node, sent_share=sent_share).prediction(size)  # type: ignore[arg-type]
    assert closed.seconds == pytest.approx(flow.seconds, rel=1e-6)
    for part in BOTTLENECKS:
        assert closed.parts[part] == pytest.approx(flow.parts.get(part, 0.0), abs=1e-6 * flow.seconds)
    assert [phase.end_s for phase in closed.phases] == pytest.approx([phase.end_s for phase in flow.phases], rel=1e-6)
    assert [(phase.name, phase.bottleneck) for phase in closed.phases] == [
        (phase.name, phase.bottleneck) for phase in flow.phases
    ]
    assert (closed.fallback, closed.nodes, closed.assumed) == (flow.fallback, flow.nodes, flow.assumed)


@pytest.mark.parametrize("terms", [Terms(), ALL_TERMS], ids=["no terms", "all terms"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [4, 8, 16, 32])
def test_ports_shared_by_flows_of_two_lengths_are_near_the_fluid(ranks: int, algorithm: str, terms: Terms) -> None:
    machine = replace(SMALL["shared port"], terms=terms)
    for size in (1.0, 1e3):
        plan = schedule(algorithm, machine.job(ranks, 2), uniform_matrix(ranks, size))  # type: ignore[arg-type]
        closed = UniformModel.build(machine, algorithm, ranks, 2).prediction(size)  # type: ignore[arg-type]
        assert closed.seconds == pytest.approx(predict(machine, plan, resolution=0).seconds, rel=0.1)


@pytest.mark.parametrize("nodes", [[(0, 5), (2, 1), (4, 3)], [(0, 1, 2), (3,), (4, 5)]], ids=["mixed", "uneven"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_takes_any_placement(algorithm: str, nodes: list[tuple[int, ...]]) -> None:
    machine = replace(SMALL["tapered"], terms=ALL_TERMS)
    job = Job.of_nodes(nodes)
    flow = predict(machine, schedule(algorithm, job, uniform_matrix(6, 600.0)), resolution=0)  # type: ignore[arg-type]
    assert UniformModel.of_job(machine, algorithm, job).prediction(600.0).seconds == pytest.approx(flow.seconds)  # type: ignore[arg-type]


def test_sizes_go_through_all_at_once() -> None:
    model = UniformModel.build(replace(SMALL["minimal"], terms=ALL_TERMS), "halo_v2", 32)
    sizes = np.array([[0.0, 1.0], [1e3, 1e6]])
    times = model.at(sizes)
    assert times.seconds.shape == times.bottleneck.shape == sizes.shape
    for place, size in np.ndenumerate(sizes):
        point = model.prediction(float(size))
        assert times.seconds[place] == pytest.approx(point.seconds)
        assert BOTTLENECKS[times.bottleneck[place]] == point.bottleneck
    np.testing.assert_allclose(sum(times.parts.values()), times.seconds)


def test_figures_by_hand_on_frontier() -> None:
    """64 nodes; of 8 bytes a rank that stay below the message rate, two ranks a NIC of 20 GB/s."""
    machine = load_machine("frontier").fluid
    size = 512e6
    flat = UniformModel.build(machine, "flat", 512).prediction(size)
    assert flat.seconds == pytest.approx(2 * (512 - 8) * 1e6 / 20e9)
    assert flat.bottleneck == "NIC"
    halo = UniformModel.build(machine, "halo_v1", 512).prediction(size)
    assert halo.seconds == pytest.approx(flat.seconds + 7 * 63e6 / 50e9)


def test_beyond_a_group_the_taper_binds() -> None:
    answer = UniformModel.build(load_machine("frontier").fluid, "flat", 4096).prediction(4096e6)
    assert answer.bottleneck == "global"
    assert answer.seconds == pytest.approx(2 * 3072e6 * 1.753 / 20e9)


@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan])
def test_impossible_sizes_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        UniformModel.build(SMALL["switch"], "flat", 4).at(value)


def test_impossible_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="sent_share must be above 0"):
        UniformModel.build(SMALL["switch"], "flat", 4, sent_share=0)
