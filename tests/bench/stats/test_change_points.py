"""Change points: what must be found, where and when, and what must never be taken for one."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.stats.change_points import CONFIRM_POINTS, LEAST_POINTS, Settings, find_changes

if TYPE_CHECKING:
    from bench.stats.findings import Findings


def noise(count: int, points: int, cv: float = 0.02, seed: int = 0) -> np.ndarray:
    return 100 * np.exp(cv * np.random.default_rng(seed).standard_normal((count, points)))


def one(values: np.ndarray, errors: np.ndarray | None = None, **wishes: float) -> Findings:
    given_errors = None if errors is None else [errors]
    (found,) = find_changes([values], given_errors, Settings(**wishes))  # type: ignore[arg-type]
    return found


def places(values: np.ndarray, **wishes: float) -> list[int]:
    return [change.index for change in one(values, **wishes).changes]


def test_a_step_is_found_where_it_is_with_its_size_and_levels() -> None:
    x = noise(1, 60)[0]
    x[40:] *= 1.06
    (change,) = one(x).changes
    assert change.index == 40
    assert change.earliest <= 40 <= change.latest
    assert change.effect == pytest.approx(0.06, abs=0.015)
    assert change.interval[0] < 0.06 < change.interval[1]
    assert change.after / change.before == pytest.approx(1 + change.effect)
    assert (change.points_before, change.points_after, change.status) == (40, 20, "confirmed")
    assert change.p_value < 1e-6


def test_steps_down_are_found_as_well() -> None:
    x = noise(1, 60)[0]
    x[30:] *= 0.9
    (change,) = one(x).changes
    assert (change.index, change.effect < 0) == (30, True)


def test_a_change_is_suspected_until_there_are_enough_points_after_it() -> None:
    x = noise(1, 60, seed=3)[0]
    x[40:] *= 1.1
    status = {end - 40: [change.status for change in one(x[:end]).changes] for end in range(41, 56)}
    assert status[2] == []
    assert status[5] == ["suspected"]
    assert status[CONFIRM_POINTS - 1] == ["suspected"]
    assert status[CONFIRM_POINTS] == ["confirmed"]


def test_several_changes_are_found_with_their_places() -> None:
    x = noise(1, 120, seed=4)[0]
    for place, factor in ((25, 1.1), (50, 0.85), (62, 1.15), (100, 1.08)):
        x[place:] *= factor
    found = places(x)
    assert len(found) == 4
    assert all(abs(place - true) <= 1 for place, true in zip(found, (25, 50, 62, 100), strict=True))


def test_spikes_are_no_changes_even_two_in_a_row_at_the_end() -> None:
    x = noise(1, 60, seed=5)[0]
    x[[5, 17, 30, 31, 58, 59]] *= 3
    assert places(x) == []


def test_few_steady_series_ever_alarm() -> None:
    x = noise(300, 60, seed=6)
    alarmed = np.zeros(len(x), dtype=bool)
    for points in range(20, 61, 4):
        alarmed |= [bool(found.changes) for found in find_changes(list(x[:, :points]), together=False)]
    assert alarmed.sum() <= 5


def test_a_family_of_series_is_judged_more_strictly_than_one() -> None:
    x = noise(200, 50, seed=15)
    x[0, 40:] *= 1.035
    (alone,) = find_changes([x[0]])[0].changes
    assert 0.005 / 200 < alone.p_value <= 0.005, "the example is one that the family must not show"
    assert not any(found.changes for found in find_changes(list(x)))
    # Where many series change, each may be judged less strictly again.
    x[:150, 40:] *= 1.05
    assert sum(bool(found.changes) for found in find_changes(list(x))) >= 140


def test_the_floor_of_magnitude_hides_small_changes() -> None:
    x = noise(1, 60, cv=0.001)[0]
    x[30:] *= 1.006
    assert places(x) == []
    assert places(x, minimum_effect=0.003) == [30]


def test_a_drift_is_told_apart_from_a_step() -> None:
    slope = noise(1, 60, cv=0.005)[0] * np.linspace(1, 1.05, 60)
    found = one(slope)
    assert found.changes == ()
    (drift,) = found.drifts
    assert (drift.first, drift.last, drift.points, drift.status) == (0, 59, 60, "confirmed")
    assert drift.effect == pytest.approx(0.05, abs=0.01)
    assert drift.interval[0] < 0.05 < drift.interval[1]
    assert (drift.before, drift.after) == (pytest.approx(100, rel=0.01), pytest.approx(105, rel=0.01))
    # Gaps are counted in places and not in points; the same slope in few points is suspected.
    slope[[5, 30]] = math.nan
    (drift,) = one(slope).drifts
    assert (drift.last, drift.points) == (59, 58)
    (drift,) = one(noise(1, 18, cv=0.005, seed=3)[0] * np.linspace(1, 1.05, 18)).drifts
    assert (drift.status, one(slope[::-1]).drifts[0].effect < 0) == ("suspected", True)


def test_a_step_is_no_drift_and_a_step_within_a_drift_is_found() -> None:
    x = noise(1, 60, cv=0.005)[0]
    x[30:] *= 1.05
    assert places(x) == [30]
    assert one(x).drifts == ()
    (place,) = places(x * np.linspace(1, 1.03, 60))
    assert abs(place - 30) <= 1


def test_most_drifts_are_told_as_such_and_few_as_steps() -> None:
    x = noise(200, 60, seed=21) * np.linspace(1, 1.05, 60)
    found = find_changes(list(x), together=False)
    assert sum(bool(each.drifts) for each in found) >= 105
    assert sum(bool(each.changes) for each in found) <= 45


def test_a_staircase_is_no_drift() -> None:
    x = noise(1, 120, seed=22)[0]
    for place in (30, 60, 90):
        x[place:] *= 1.08
    assert len(places(x)) == 3
    assert one(x).drifts == ()


def test_with_several_changes_each_may_be_more_doubtful() -> None:
    x = noise(200, 60, seed=23)
    x[:, 20:40] *= 1.035
    p_values = [[change.p_value for change in each.changes] for each in find_changes(list(x), together=False)]
    assert all(max(found) <= 0.005 * len(found) for found in p_values if found)
    assert any(max(found) > 0.005 for found in p_values if found)


def test_a_place_is_the_one_that_most_probably_is_near() -> None:
    x = noise(400, 55, seed=24)
    x[:, 40:] *= 1.04
    found = [each.changes for each in find_changes(list(x), together=False)]
    near = [abs(changes[0].index - 40) <= 1 for changes in found if len(changes) == 1]
    assert len(near) > 200
    assert sum(near) / len(near) > 0.78


def test_places_rise_however_close_changes_are() -> None:
    rng = np.random.default_rng(25)
    x = noise(300, 60, cv=0.03, seed=25)
    for row in x:
        for place in rng.choice(np.arange(6, 57), 5, replace=False):
            row[place:] *= rng.choice([0.93, 1.07])
    for each in find_changes(list(x), None, Settings(significance=0.3), together=False):
        indices = [change.index for change in each.changes]
        assert indices == sorted(set(indices))
        assert all(math.isfinite(change.effect) for change in each.changes)


def test_gaps_are_left_out_and_places_count_them() -> None:
    x = noise(1, 70, seed=9)[0]
    x[40:] *= 1.1
    x[[3, 4, 20, 50]] = math.nan
    x[36:40] = math.nan
    (change,) = one(x).changes
    assert change.index == 40
    assert change.points_before == 33
    # The same points without the gaps tell the same.
    (dense,) = one(x[np.isfinite(x)]).changes
    assert (dense.effect, dense.p_value) == (change.effect, change.p_value)


def test_points_that_are_badly_known_count_less() -> None:
    x, errors = np.full(40, 100.0) + np.tile([-1.0, 1.0], 20), np.full(40, 1.0)
    x[30:] += 5
    assert places(x) == [30]
    errors[30:] = 30.0
    assert one(x, errors).changes == ()
    assert one(x, np.full(40, math.nan)).changes[0].index == 30


def test_exact_counts_change_exactly() -> None:
    x = np.array([16.0] * 30 + [17.0] * 3)
    (change,) = one(x).changes
    assert (change.index, change.effect) == (30, pytest.approx(1 / 16))
    assert places(np.full(40, 16.0)) == []


def test_zeros_and_negative_values_have_changes_too() -> None:
    x = np.concatenate([np.zeros(30), np.full(20, 3.0)])
    (change,) = one(x).changes
    assert (change.index, change.effect) == (30, math.inf)
    negative = -noise(1, 60, seed=10)[0]
    negative[35:] *= 1.2
    (change,) = one(negative).changes
    assert (change.index, change.effect) == (35, pytest.approx(-0.2, abs=0.02))


def test_short_series_are_not_judged() -> None:
    assert not one(np.full(LEAST_POINTS - 1, 5.0)).judged
    assert one(np.full(LEAST_POINTS, 5.0)).judged
    assert not one(np.full(90, math.nan)).judged
    assert find_changes([]) == []


def test_the_same_points_give_the_same_answer_in_any_order_of_series() -> None:
    x = noise(50, 60, seed=11)
    x[::3, 30:] *= 1.05
    forward, backward = find_changes(list(x)), find_changes(list(x[::-1]))
    assert forward == backward[::-1] == find_changes(list(x))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(allow_infinity=False, min_value=-1e12, max_value=1e12), st.just(math.nan)), max_size=60
    )
)
def test_any_numbers_are_judged_without_error(values: list[float]) -> None:
    x = np.array(values)
    found = one(x, np.abs(x))
    for change in found.changes:
        assert change.earliest <= change.index <= change.latest
        assert np.isfinite(x[[change.earliest, change.index, change.latest]]).all()
        assert 0 <= change.p_value <= 0.005 * len(found.changes)
    for drift in found.drifts:
        assert 0 <= drift.first < drift.last < len(x)
        assert 0 <= drift.p_value <= 0.005


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_the_unit_does_not_matter(seed: int, factor: float) -> None:
    x = noise(1, 60, seed=seed)[0]
    x[30:] *= 1.08
    assert places(x) == places(x * factor)


@pytest.mark.parametrize(
    "wishes", [{"significance": 0.0}, {"significance": 1.0}, {"minimum_effect": -0.1}, {"confirm_points": 1}]
)
def test_impossible_settings_are_refused(wishes: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Settings(**wishes)  # type: ignore[arg-type]


@pytest.mark.alone
def test_thousands_of_series_take_seconds() -> None:
    x = noise(4000, 100, seed=12)
    x[::2, 60:] *= 1.05
    began = time.perf_counter()
    found = find_changes(list(x))
    assert time.perf_counter() - began < 20
    assert sum(bool(each.changes) for each in found[::2]) > 1950
