"""The alpha-beta fit finds what synthetic latencies were made of, and claims no more."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fit import (
    MAX_ANCHORS,
    MIN_SIZE_SHARE,
    RESIDUAL_FLOOR,
    Line,
    UnfittableError,
    fit_alpha_beta,
)

DOUBLING = [1 << exponent for exponent in range(10, 29)]


def predict_line(line: Line, size: float) -> float:
    return line.alpha_us + line.us_per_byte * size


def predict(lines: tuple[Line, ...], size: float) -> float:
    return predict_line(next(line for line in lines if size <= line.max_bytes), size)


def mean_loss(lines: tuple[Line, ...], sizes: list[int], latencies: list[float]) -> float:
    return float(np.mean([abs(math.log(predict(lines, x) / y)) for x, y in zip(sizes, latencies, strict=True)]))


def latencies(alpha_us: float, beta_gb_s: float, sizes: list[int] = DOUBLING) -> list[float]:
    return [alpha_us + size / beta_gb_s / 1e3 for size in sizes]


def noisy(values: list[float], noise: float, seed: int) -> list[float]:
    factors = np.exp(np.random.default_rng(seed).normal(0, noise, len(values)))
    return [float(value * factor) for value, factor in zip(values, factors, strict=True)]


size_lists = st.lists(st.integers(1, 2**34), min_size=3, max_size=24, unique=True).map(sorted)


@st.composite
def measured(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Any sizes with any latencies, however absurd."""
    sizes = draw(size_lists)
    return sizes, draw(st.lists(st.floats(1e-2, 1e8), min_size=len(sizes), max_size=len(sizes)))


@settings(deadline=None)
@given(st.floats(1, 1e4), st.floats(0.05, 500))
def test_exact_line_is_recovered(alpha_us: float, beta_gb_s: float) -> None:
    lines = fit_alpha_beta(DOUBLING, latencies(alpha_us, beta_gb_s))
    for size, latency in zip(DOUBLING, latencies(alpha_us, beta_gb_s), strict=True):
        # Where the size shows in no latency by 5 %, the fit may leave it out.
        assert predict(lines, size) == pytest.approx(latency, rel=MIN_SIZE_SHARE / (1 - MIN_SIZE_SHARE))
    if DOUBLING[-1] / beta_gb_s / 1e3 > alpha_us:
        assert len(lines) == 1
        assert lines[0].alpha_us == pytest.approx(alpha_us, rel=1e-3, abs=1e-3 * latencies(alpha_us, beta_gb_s)[0])
        assert lines[0].beta_gb_s == pytest.approx(beta_gb_s, rel=1e-3)


# How far noise moves a fit is said of many draws: a search for the worst of them would find any bound too low.
@pytest.mark.parametrize("alpha_us", [5, 50, 500])
@pytest.mark.parametrize("beta_gb_s", [0.5, 5, 50])
def test_noise_of_five_percent_moves_alpha_and_beta_little(alpha_us: float, beta_gb_s: float) -> None:
    exact = latencies(alpha_us, beta_gb_s)
    fits = [fit_alpha_beta(DOUBLING, noisy(exact, 0.05, seed)) for seed in range(200)]
    assert np.quantile([abs(predict(lines, DOUBLING[0]) / exact[0] - 1) for lines in fits], 0.99) < 0.12
    assert np.quantile([abs(1 / lines[-1].us_per_byte / 1e3 / beta_gb_s - 1) for lines in fits], 0.99) < 0.12


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("points", [8, 12, 19])
def test_noise_alone_seldom_makes_two_segments(noise: float, points: int) -> None:
    sizes = DOUBLING[:points]
    splits = [len(fit_alpha_beta(sizes, noisy(latencies(20, 0.5, sizes), noise, seed))) == 2 for seed in range(200)]
    assert sum(splits) <= 10


@pytest.mark.parametrize("noise", [0, 0.02, 0.05, 0.08])
def test_protocol_change_makes_two_segments(noise: float) -> None:
    eager, rendezvous = latencies(5, 8), latencies(40, 20)
    switch = 6  # 1 to 32 KiB are eager
    exact = eager[:switch] + rendezvous[switch:]
    fits = [fit_alpha_beta(DOUBLING, noisy(exact, noise, seed)) for seed in range(200)]
    assert all(len(lines) == 2 for lines in fits)
    assert all(DOUBLING[switch - 1] <= lines[0].max_bytes < DOUBLING[switch] for lines in fits)
    # Only six points bear the first line's alpha.
    bound = 1e-9 + 2.5 * noise
    assert np.quantile([abs(lines[0].alpha_us / 5 - 1) for lines in fits], 0.99) < bound
    assert np.quantile([abs(lines[1].alpha_us / 40 - 1) for lines in fits], 0.99) < bound
    assert np.quantile([abs(1 / lines[1].us_per_byte / 1e3 / 20 - 1) for lines in fits], 0.99) < bound


def test_leaving_the_cache_makes_two_segments_that_meet() -> None:
    seam = 1 << 20
    bent = [10 + min(size, seam) / 10e3 + max(size - seam, 0) / 1e3 for size in DOUBLING]
    first, second = fit_alpha_beta(DOUBLING, bent)
    assert first.beta_gb_s == pytest.approx(10, rel=0.05)
    # The second line would need a negative alpha to be exact.
    assert second.alpha_us == pytest.approx(0, abs=1)
    assert second.beta_gb_s == pytest.approx(1, rel=0.1)


def test_lines_that_cross_between_two_points_meet_where_they_cross() -> None:
    crossing = 3 << 19  # between 1 and 2 MiB
    fast, slow = latencies(100, 10), latencies(20, crossing / (80e3 + crossing / 10))
    first, second = fit_alpha_beta(DOUBLING, [max(pair) for pair in zip(fast, slow, strict=True)])
    assert first.max_bytes == pytest.approx(crossing, rel=1e-3)
    seam = first.max_bytes
    assert predict_line(second, seam) >= predict_line(first, seam)
    assert predict_line(second, seam - 1) <= predict_line(first, seam - 1)


def test_ripples_below_what_can_be_measured_make_no_second_segment() -> None:
    rippled = [us * (1.005 if size > 1 << 19 else 1.0) for size, us in zip(DOUBLING, latencies(20, 2), strict=True)]
    assert len(fit_alpha_beta(DOUBLING, rippled)) == 1


def test_a_fall_at_the_seam_is_not_fitted() -> None:
    falling = latencies(100, 10)[:9] + latencies(2, 10)[9:]
    lines = fit_alpha_beta(DOUBLING, falling)
    predictions = [predict(lines, size) for size in DOUBLING]
    assert predictions == sorted(predictions)


@settings(deadline=None)
@given(measured())
def test_any_points_give_a_physical_fit(points: tuple[list[int], list[float]]) -> None:
    sizes, values = points
    lines = fit_alpha_beta(sizes, values)
    assert lines[0].min_bytes == sizes[0]
    assert lines[-1].max_bytes == sizes[-1]
    assert all(left.max_bytes == right.min_bytes for left, right in itertools.pairwise(lines))
    for line in lines:
        assert line.alpha_us >= 0
        assert line.us_per_byte >= 0
        assert line.beta_gb_s is None or 0 < line.beta_gb_s < math.inf
        assert line.us_per_byte * line.max_bytes + line.alpha_us > 0
    for low, high in itertools.pairwise(sizes):
        steps = [predict(lines, low + (high - low) * share) for share in (0, 0.25, 0.5, 0.75, 1)]
        assert all(left <= right * (1 + 1e-9) for left, right in itertools.pairwise(steps))


@settings(deadline=None)
@given(measured(), st.floats(1e-3, 1e3), st.integers(1, 64))
def test_units_of_time_and_size_do_not_matter(
    points: tuple[list[int], list[float]], time_factor: float, size_factor: int
) -> None:
    sizes, values = points
    scaled_sizes, scaled_values = [size * size_factor for size in sizes], [value * time_factor for value in values]
    plain, scaled = fit_alpha_beta(sizes, values), fit_alpha_beta(scaled_sizes, scaled_values)
    # Equally good lines may change places by rounding, so compare how good the fits are.
    if len(plain) == len(scaled):
        loss = mean_loss(plain, sizes, values)
        assert mean_loss(scaled, scaled_sizes, scaled_values) == pytest.approx(loss, rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(measured())
def test_no_line_near_the_fit_is_better(points: tuple[list[int], list[float]]) -> None:
    sizes, values = points
    lines = fit_alpha_beta(sizes, values)
    if len(lines) == 2:
        return
    (line,) = lines
    best = mean_loss(lines, sizes, values)
    for alpha_factor, slope_factor in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99), (1.01, 1.01), (0.99, 0.99)):
        near = Line(sizes[0], sizes[-1], line.alpha_us * alpha_factor, line.us_per_byte * slope_factor)
        if near.us_per_byte * sizes[-1] >= MIN_SIZE_SHARE * (near.alpha_us + near.us_per_byte * sizes[-1]):
            assert mean_loss((near,), sizes, values) >= best - 2e-3


def test_one_outlier_moves_the_fit_little() -> None:
    values = latencies(30, 5)
    values[7] *= 20
    (line,) = fit_alpha_beta(DOUBLING, values)
    assert line.alpha_us == pytest.approx(30, rel=0.01)
    assert line.beta_gb_s == pytest.approx(5, rel=0.01)


def test_size_that_does_not_show_gives_no_bandwidth() -> None:
    (line,) = fit_alpha_beta([64, 128, 256, 512, 1024], [20.0, 20.3, 19.8, 20.1, 20.2])
    assert line.beta_gb_s is None
    assert line.alpha_us == pytest.approx(20.1)


def test_flat_eager_segment_is_kept_beside_the_sloped_one() -> None:
    first, second = fit_alpha_beta(DOUBLING, [8.0] * 6 + latencies(40, 20)[6:])
    assert (first.alpha_us, first.beta_gb_s) == (8.0, None)
    assert second.beta_gb_s == pytest.approx(20)


def test_more_points_than_anchors_are_all_used() -> None:
    sizes = [1000 * (index + 1) for index in range(3 * MAX_ANCHORS)]
    (line,) = fit_alpha_beta(sizes, noisy(latencies(50, 1, sizes), 0.05, seed=3))
    assert line.alpha_us == pytest.approx(50, rel=0.2)
    assert line.beta_gb_s == pytest.approx(1, rel=0.1)
    assert mean_loss((line,), sizes, noisy(latencies(50, 1, sizes), 0.05, seed=3)) < 0.05 > RESIDUAL_FLOOR


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_points_are_refused_with_the_number_needed(count: int) -> None:
    with pytest.raises(UnfittableError, match=rf"^{count} size\(s\) measured; a fit needs 3$"):
        fit_alpha_beta(DOUBLING[:count], latencies(1, 1)[:count])


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ([2, 1, 3], [1.0, 1.0, 1.0]),
        ([1, 1, 2], [1.0, 1.0, 1.0]),
        ([1, 2, 3], [1.0, 0.0, 1.0]),
        ([1, 2, 3], [1.0, math.nan, 1.0]),
        ([1, 2, 3], [1.0, 2.0]),
    ],
)
def test_impossible_input_is_an_error(sizes: list[int], values: list[float]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        fit_alpha_beta(sizes, values)
