"""The fluid engine: against a plain simulation flow by flow, its steps, its terms, its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.flows import schedule, uniform_matrix
from ciera_piper_core.simulate.fluid import predict
from ciera_piper_core.simulate.terms import Terms
from tests.ciera_piper_core.simulate.fluid_oracle import makespan
from tests.ciera_piper_core.simulate.machines import SMALL

if TYPE_CHECKING:
    from ciera_piper_core.simulate.machine import Machine


def skewed(ranks: int, seed: int) -> np.ndarray:
    """Popular receivers, a few large flows, and a third of the pairs without any."""
    generator = np.random.default_rng(seed)
    matrix = generator.integers(1, 40, (ranks, ranks)) * (1 + 3 * (generator.random(ranks) < 0.3))
    matrix[generator.random((ranks, ranks)) < 0.3] = 0
    return matrix.astype(np.float64)


@given(
    st.sampled_from(sorted(SMALL)), st.sampled_from(ALGORITHMS), st.integers(2, 9), st.integers(1, 4), st.integers(0, 9)
)
@settings(max_examples=25, deadline=None)
def test_exact_steps_are_those_of_single_flows(name: str, algorithm: str, ranks: int, per_node: int, seed: int) -> None:
    machine = SMALL[name]
    job = machine.job(ranks, per_node)
    plan = schedule(algorithm, job, skewed(ranks, seed))  # type: ignore[arg-type]
    expected = makespan(machine.fabric(job), plan)
    assert predict(machine, plan, resolution=0).seconds == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["tapered", "minimal", "rails"])
def test_coarse_steps_err_little(name: str, algorithm: str) -> None:
    machine = SMALL[name]
    ranks = 32
    generator = np.random.default_rng(3)
    matrix = generator.pareto(1.5, (ranks, ranks)) + 0.1
    plan = schedule(algorithm, machine.job(ranks), matrix * generator.permutation(1 / np.arange(1, ranks + 1)))  # type: ignore[arg-type]
    exact = predict(machine, plan, resolution=0).seconds
    assert predict(machine, plan, resolution=1 / 64).seconds == pytest.approx(exact, rel=0.02)
    assert predict(machine, plan, resolution=1 / 256).seconds == pytest.approx(exact, rel=0.006)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_twice_the_bytes_take_twice_as_long(algorithm: str) -> None:
    machine = SMALL["tapered"]
    job, matrix = machine.job(16), skewed(16, 1)
    once, twice = (predict(machine, schedule(algorithm, job, factor * matrix)).seconds for factor in (1, 2))  # type: ignore[arg-type]
    assert twice == pytest.approx(2 * once, rel=1e-6)


def test_a_hot_receiver_is_bound_by_its_nic() -> None:
    machine = SMALL["switch"]
    matrix = np.ones((16, 16))
    matrix[:, 5] = 100
    answer = predict(machine, schedule("flat", machine.job(16), matrix))
    # Ranks 4 and 5 share a NIC, which takes what 12 ranks of other nodes send to both.
    assert answer.seconds == pytest.approx(12 * 101 / 10.0)
    assert answer.bottleneck == "NIC"


@pytest.mark.parametrize("matrix", [np.zeros((8, 8)), np.diag(np.arange(8.0))], ids=["nothing", "own rows"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_to_send_takes_no_time_but_the_starts(algorithm: str, matrix: np.ndarray) -> None:
    machine = replace(SMALL["switch"], terms=Terms(phase_start_s=0.5, message_inter_s=9.0))
    plan = schedule(algorithm, machine.job(8), matrix)  # type: ignore[arg-type]
    levels = {"flat": 1, "two_phase": 2, "halo_v0": 3, "halo_v1": 2, "halo_v2": 2}
    assert predict(machine, plan).seconds == pytest.approx(0.5 * levels[algorithm])


def test_one_rank_has_nobody_to_talk_to() -> None:
    machine = SMALL["switch"]
    assert predict(machine, schedule("flat", machine.job(1), np.ones((1, 1)))).seconds == 0


def with_terms(machine: Machine, **values: float) -> Machine:
    return replace(machine, terms=Terms(**values))  # type: ignore[arg-type]


def seconds(machine: Machine, algorithm: str, bytes_per_rank: float = 1600.0, ranks: int = 16) -> float:
    return predict(machine, schedule(algorithm, machine.job(ranks), uniform_matrix(ranks, bytes_per_rank))).seconds  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("terms", "algorithm", "more"),
    [
        ({"message_intra_s": 1.0}, "flat", 3.0),
        ({"message_inter_s": 1.0}, "flat", 12.0),
        ({"message_inter_s": 1.0}, "two_phase", 3.0),
        ({"message_intra_s": 1.0}, "halo_v0", 6.0),
        ({"phase_start_s": 1.0}, "halo_v0", 3.0),
        # Rows of 100 bytes: 12 of 16 leave the node; they are gathered and scattered, read and written.
        ({"copy_bytes_s": 100.0}, "halo_v0", 4 * 12.0),
        ({"copy_bytes_s": 100.0}, "two_phase", 4 * 16.0),
    ],
)
def test_fixed_costs_add_up(terms: dict[str, float], algorithm: str, more: float) -> None:
    machine = SMALL["switch"]
    assert seconds(with_terms(machine, **terms), algorithm) - seconds(machine, algorithm) == pytest.approx(more)


def test_incast_slows_what_comes_from_beyond_the_switch() -> None:
    machine = SMALL["fat tree"]
    slow = with_terms(machine, peers_that_halve=8, incast_most=10)
    assert seconds(slow, "flat") / seconds(machine, "flat") == pytest.approx(1 + 8 / 8)
    assert seconds(slow, "halo_v0") == pytest.approx(seconds(machine, "halo_v0"))
    rails = with_terms(machine, rail_peers_that_halve=2, rail_incast_most=10)
    assert seconds(rails, "flat") == pytest.approx(seconds(machine, "flat"))
    assert seconds(rails, "two_phase") > seconds(machine, "two_phase")


def test_a_nic_takes_only_so_many_messages() -> None:
    machine = with_terms(SMALL["switch"], nic_messages_s=0.1)
    # 100 bytes take as long as a message at least takes: ten seconds of the NIC, two ranks, 12 messages each.
    assert seconds(machine, "flat", 16 * 1.0) == pytest.approx(2 * 12 / 0.1)
    plan = schedule("flat", machine.job(16), uniform_matrix(16, 16.0))
    assert predict(machine, plan).bottleneck == "message rate"
    assert seconds(machine, "flat", 16 * 200.0) == pytest.approx(seconds(SMALL["switch"], "flat", 16 * 200.0))


def test_what_does_not_overlap_is_added() -> None:
    machine = SMALL["switch"]
    whole, none = seconds(machine, "halo_v1"), seconds(with_terms(machine, overlap_share=0.0), "halo_v1")
    assert none == pytest.approx(seconds(machine, "halo_v0"))
    assert seconds(with_terms(machine, overlap_share=0.5), "halo_v1") == pytest.approx((whole + none) / 2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", SMALL)
def test_parts_add_up(name: str, algorithm: str) -> None:
    terms = Terms(message_intra_s=0.5, message_inter_s=0.7, phase_start_s=2.0, copy_bytes_s=40.0, overlap_share=0.8)
    machine = replace(SMALL[name], terms=terms)
    answer = predict(machine, schedule(algorithm, machine.job(16), skewed(16, 2)))  # type: ignore[arg-type]
    assert sum(answer.parts.values()) == pytest.approx(answer.seconds)
    assert min(answer.parts.values()) >= 0
    assert max(phase.end_s for phase in answer.phases) <= answer.seconds * (1 + 1e-9)
    assert answer.engine == "max-min"


@pytest.mark.parametrize("resolution", [-0.1, 1.0])
def test_impossible_resolutions_are_refused(resolution: float) -> None:
    machine = SMALL["switch"]
    with pytest.raises(ValueError, match="resolution must be at least 0"):
        predict(machine, schedule("flat", machine.job(2), np.ones((2, 2))), resolution=resolution)
