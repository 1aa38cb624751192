"""Phases of the algorithms: every byte arrives, over the ranks that it should pass, and nothing else is sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.flows import Phase, fallback_reason, schedule, uniform_matrix
from ciera_piper_core.simulate.job import Job

HIERARCHICAL = [name for name in ALGORITHMS if name != "flat"]


def as_matrix(phase: Phase, ranks: int) -> np.ndarray:
    matrix = np.zeros((ranks, ranks))
    np.add.at(matrix, (phase.src, phase.dst), phase.bytes)
    return matrix


def carried(algorithm: str, matrix: np.ndarray, job: Job) -> list[np.ndarray]:
    """What each phase sends from rank to rank, byte class by byte class, as the algorithms say."""
    ranks = job.ranks
    at = {(int(job.node[rank]), int(job.local[rank])): rank for rank in range(ranks)}
    phases = [np.zeros((ranks, ranks)) for _ in range(2 if algorithm == "two_phase" else 3)]
    for i in range(ranks):
        for j in range(ranks):
            (a, place), (b, m) = (int(job.node[i]), int(job.local[i])), (int(job.node[j]), int(job.local[j]))
            if algorithm == "two_phase":
                hops = [(0, i, at[a, m]), (1, at[a, m], j)]
            elif a == b:
                hops = [(0, i, j)]
            else:
                hops = [(1, i, at[b, place]), (2, at[b, place], j)]
            for phase, sender, receiver in hops:
                if sender != receiver:
                    phases[phase][sender, receiver] += matrix[i, j]
    return phases


@given(
    st.sampled_from(HIERARCHICAL),
    st.integers(2, 4),
    st.integers(2, 4),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_hierarchical_phases_carry_each_byte_along_its_way(
    algorithm: str, nodes: int, places: int, seed: int, shuffled: bool
) -> None:
    generator = np.random.default_rng(seed)
    ranks = nodes * places
    matrix = generator.integers(0, 5, (ranks, ranks)).astype(float)
    order = generator.permutation(ranks) if shuffled else np.arange(ranks)
    job = Job.of_nodes(order.reshape(nodes, places).tolist())
    plan = schedule(algorithm, job, matrix)  # type: ignore[arg-type]
    assert plan.fallback == ""
    for phase, expected in zip(plan.phases, carried(algorithm, matrix, job), strict=True):
        np.testing.assert_allclose(as_matrix(phase, ranks), expected)
        assert (phase.bytes > 0).all()
        assert len(set(zip(phase.src.tolist(), phase.dst.tolist(), strict=True))) == len(phase.src)
        assert phase.rails == (phase.name == "inter")


def test_flat_sends_directly_and_nothing_to_itself() -> None:
    matrix = np.array([[5, 1, 0], [2, 5, 3], [0, 0, 5]])
    plan = schedule("flat", Job.even(3, 2), matrix)
    np.testing.assert_array_equal(as_matrix(plan.phases[0], 3), [[0, 1, 0], [2, 0, 3], [0, 0, 0]])
    assert plan.bytes_per_rank == 10


@pytest.mark.parametrize(
    ("algorithm", "after"),
    [
        ("two_phase", [(), (0,)]),
        ("halo_v0", [(), (0,), (1,)]),
        ("halo_v1", [(), (), (0, 1)]),
        ("halo_v2", [(1,), (), (1,)]),
    ],
)
def test_variants_differ_in_what_comes_before(algorithm: str, after: list[tuple[int, ...]]) -> None:
    plan = schedule(algorithm, Job.even(8, 4), uniform_matrix(8, 64.0))  # type: ignore[arg-type]
    assert [phase.after for phase in plan.phases] == after


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job.even(4, 4), "one node"),
        (Job.even(6, 4), "nodes of unequal size"),
        (Job.even(3, 1), "one rank a node"),
        (Job.even(1, 1), "one node"),
    ],
)
@pytest.mark.parametrize("algorithm", HIERARCHICAL)
def test_where_there_is_no_hierarchy_it_is_flat(algorithm: str, job: Job, reason: str) -> None:
    matrix = uniform_matrix(job.ranks, 100.0)
    plan = schedule(algorithm, job, matrix)  # type: ignore[arg-type]
    assert plan.fallback == fallback_reason(algorithm, job) == reason  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        as_matrix(plan.phases[0], job.ranks), as_matrix(schedule("flat", job, matrix).phases[0], job.ranks)
    )


@pytest.mark.parametrize("algorithm", HIERARCHICAL)
def test_copies_that_cross_once_shorten_only_what_crosses(algorithm: str) -> None:
    job, matrix = Job.even(8, 4), uniform_matrix(8, 64.0)
    whole = schedule(algorithm, job, matrix)  # type: ignore[arg-type]
    part = schedule(algorithm, job, matrix, sent_share=0.25)  # type: ignore[arg-type]
    for before, now in zip(whole.phases, part.phases, strict=True):
        np.testing.assert_allclose(now.bytes, before.bytes * (0.25 if now.name == "inter" else 1))


def test_packing_reads_and_writes_what_changes_its_order() -> None:
    job = Job.even(8, 4)
    copied = {phase.name: phase.copied for phase in schedule("halo_v1", job, uniform_matrix(8, 64.0)).phases}
    assert copied["intra"] is None
    assert copied["inter"] is not None
    assert copied["inter"].tolist() == copied["redistribute"].tolist() == [2 * 32.0] * 8  # type: ignore[union-attr]
    assert schedule("flat", job, uniform_matrix(8, 64.0)).phases[0].copied is None


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3)), r"has shape \(3, 3\)"),
        (-np.ones((3, 3)), "not negative"),
        (np.full((3, 3), np.nan), "finite"),
    ],
)
def test_impossible_traffic_is_refused(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule("flat", Job.even(3, 2), matrix)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="sent_share must be above 0"):
        schedule("flat", Job.even(3, 2), np.ones((3, 3)), sent_share=share)


def test_unknown_algorithms_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown algorithm 'ring'; known: flat, two_phase"):
        schedule("ring", Job.even(3, 2), np.ones((3, 3)))  # type: ignore[arg-type]
