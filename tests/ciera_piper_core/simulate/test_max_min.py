"""Rates are max-min fair: against exact fractions, and by the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.simulate.max_min import FairShare
from tests.ciera_piper_core.simulate.fluid_oracle import fair_rates

LINKS = 6


@st.composite
def networks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bytes_s = draw(st.lists(st.integers(1, 8), min_size=LINKS, max_size=LINKS))
    paths = draw(st.lists(st.sets(st.integers(0, LINKS - 1), min_size=1, max_size=4), min_size=1, max_size=12))
    flows = draw(st.lists(st.integers(0, 3), min_size=len(paths), max_size=len(paths)))
    table = np.array([[*path, *[-1] * (4 - len(path))] for path in paths], dtype=np.int32)
    return table, np.array(bytes_s, dtype=np.float64), np.array(flows, dtype=np.float64)


@given(networks())
@settings(max_examples=200, deadline=None)
def test_rates_are_those_of_single_flows(network: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    paths, bytes_s, flows = network
    single = [
        [link for link in path if link >= 0]
        for path, n in zip(paths.tolist(), flows, strict=True)
        for _ in range(int(n))
    ]
    expected = np.zeros(len(flows))
    expected[np.repeat(np.arange(len(flows)), flows.astype(int))] = [
        float(rate) for rate in fair_rates(single, bytes_s)
    ]
    np.testing.assert_allclose(FairShare(paths, bytes_s).rates(flows), expected, rtol=1e-9)


def random_network(seed: int, classes: int = 3000, links: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    paths = np.stack([generator.choice(links, 4, replace=False) for _ in range(classes)]).astype(np.int32)
    paths[generator.random(paths.shape) < 0.3] = -1
    paths[:, 0] = np.maximum(paths[:, 0], 0)
    # No link twice on a path.
    for column in range(1, 4):
        paths[(paths[:, :column] == paths[:, column : column + 1]).any(axis=1), column] = -1
    return paths, generator.uniform(1, 50, links), generator.integers(0, 4, classes).astype(np.float64)


@pytest.mark.parametrize("tolerance", [1e-9, 1e-3])
def test_every_flow_has_a_full_link_on_which_none_gets_more(tolerance: float) -> None:
    paths, bytes_s, flows = random_network(1)
    solver = FairShare(paths, bytes_s)
    rates = solver.rates(flows, tolerance)
    used = solver.load(rates * flows)
    slack = 1 + 10 * tolerance
    assert (used <= bytes_s * slack).all()
    assert (rates[flows == 0] == 0).all()
    fastest = np.zeros(len(bytes_s))
    for column in paths.T:
        np.maximum.at(fastest, column[column >= 0], rates[column >= 0])
    full = used >= bytes_s / slack
    reason = np.zeros(len(rates), dtype=bool)
    for column in paths.T:
        reason |= (column >= 0) & full[column] & (rates * slack >= fastest[column])
    assert reason[flows > 0].all()


def test_a_coarse_tolerance_changes_little() -> None:
    paths, bytes_s, flows = random_network(2)
    solver = FairShare(paths, bytes_s)
    np.testing.assert_allclose(solver.rates(flows, 1e-3), solver.rates(flows), rtol=0.05)


def test_both_ways_to_find_what_a_link_stops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    paths, bytes_s, flows = random_network(3)
    answers = []
    for share in (0.0, 2.0):
        monkeypatch.setattr("ciera_piper_core.simulate.max_min.SCAN_SHARE", share)
        answers.append(FairShare(paths, bytes_s).rates(flows))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-9)


def test_a_part_has_the_rates_of_the_whole_without_the_rest() -> None:
    paths, bytes_s, flows = random_network(4)
    kept = np.arange(0, len(flows), 3)
    only = np.zeros_like(flows)
    only[kept] = flows[kept]
    whole = FairShare(paths, bytes_s)
    np.testing.assert_allclose(whole.take(kept).rates(flows[kept]), whole.rates(only)[kept], rtol=1e-9)


def test_a_class_without_a_link_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one link"):
        FairShare(np.array([[0, -1], [-1, -1]], dtype=np.int32), np.ones(1))


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(ValueError, match="takes link 3, but there are 2"):
        FairShare(np.array([[0, 3]], dtype=np.int32), np.ones(2))
