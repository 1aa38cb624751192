"""The fairness contract: conditions that must be equal, series that must agree, and what is said when they do not."""

from __future__ import annotations

import math

import pytest

from bench.comparison.contract import Course, broken_agreement, broken_condition, largest_difference, parted
from bench.suite import Agreement, Parting

RIGHT = {"weights": "abc", "tokens_per_step": 512, "learning_rate": 1e-3}


def test_equal_conditions_in_another_order_are_fair() -> None:
    assert broken_condition(dict(reversed(RIGHT.items())), RIGHT, "mine", "theirs") is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weights": "abd"}, "weights differs: abd here, abc with theirs"),
        ({"tokens_per_step": 256}, "tokens per step differs: 256 here, 512 with theirs"),
        ({"learning_rate": 2e-3}, "learning rate differs: 0.002 here, 0.001 with theirs"),
    ],
)
def test_a_condition_that_differs_is_named_with_both_values(changed: dict[str, str | int | float], words: str) -> None:
    assert broken_condition({**RIGHT, **changed}, RIGHT, "mine", "theirs") == words


def test_a_condition_that_one_side_does_not_say_is_no_equal_condition() -> None:
    fewer = {name: value for name, value in RIGHT.items() if name != "weights"}
    assert broken_condition(fewer, RIGHT, "mine", "theirs") == "mine does not say its weights, which must be equal"
    assert broken_condition(RIGHT, fewer, "mine", "theirs") == "theirs does not say its weights, which must be equal"


def test_the_largest_difference_is_found_where_it_is() -> None:
    difference = largest_difference([1.0, 2.2, 3.0, 9.0], [1.0, 2.0, 3.3])
    assert difference is not None
    assert (difference.iteration, difference.value, difference.right, difference.compared) == (1, 2.2, 2.0, 3)
    assert difference.relative == pytest.approx(0.1)


@pytest.mark.parametrize(("value", "right"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, 0.0)])
def test_what_is_no_number_is_infinitely_far(value: float, right: float) -> None:
    difference = largest_difference([value], [right])
    assert difference is not None
    assert difference.relative == math.inf


def test_a_tolerance_counts_in_its_iterations_alone() -> None:
    agreements = [Agreement("loss", 1e-5, first=2)]
    right = Course({"loss": [4.0, 3.0, 2.0]})
    assert broken_agreement(agreements, Course({"loss": [4.0, 3.00001, 5.0]}), right, "theirs") is None
    broken = broken_agreement(agreements, Course({"loss": [4.0, 3.0001, 2.0]}), right, "theirs")
    assert broken is not None
    assert "loss of iteration 2 is 3.0001, with theirs 3.0" in broken
    assert "1e-05 is allowed" in broken


def test_a_tolerance_of_zero_means_the_same_bits() -> None:
    agreements = [Agreement("loss", 0.0)]
    assert broken_agreement(agreements, Course({"loss": [0.1 + 0.2]}), Course({"loss": [0.1 + 0.2]}), "theirs") is None
    broken = broken_agreement(agreements, Course({"loss": [0.1 + 0.2]}), Course({"loss": [0.3]}), "theirs")
    assert broken is not None
    assert "nothing is allowed" in broken


def test_a_missing_series_is_broken_only_once_all_is_done() -> None:
    agreements = [Agreement("validation_loss", 0.01)]
    assert broken_agreement(agreements, Course({}), Course({"validation_loss": [1.0]}), "theirs", whole=False) is None
    assert (
        broken_agreement(agreements, Course({}), Course({"validation_loss": [1.0]}), "theirs", whole=True) is not None
    )


CHOICES = [[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("second", "found"),
    [([0.25, 0.75], None), ([0.26, 0.74], (1, pytest.approx(0.01))), ([0.25, 0.25, 0.5], (1, math.inf))],
)
def test_where_choices_part(second: list[float], found: tuple[int, float] | None) -> None:
    where = parted([CHOICES[0], second], CHOICES)
    assert (where and (where.iteration, where.share)) == found


@pytest.mark.parametrize(
    ("losses", "moved_in", "moved", "words"),
    [
        # Up to the iteration in which choices part, and without any, the tolerance is the narrow one.
        ([4.0, 3.0, 2.0, 1.009], 3, 0.01, None),
        (
            [4.0, 3.0, 2.0, 1.02],
            3,
            0.01,
            "loss of iteration 4 is 1.02, with theirs 1.0: a difference of 0.02, and 0.01",
        ),
        ([4.0, 3.0, 2.001, 1.0], 3, 0.01, "loss of iteration 3"),
        ([4.0, 3.0, 2.0, 1.009], 3, 0.0, "loss of iteration 4 is 1.009"),
        # Not too early, and not too many.
        ([4.0, 3.0, 2.0, 1.0], 1, 0.01, "routes part from those with theirs in iteration 2, 1.00% of them"),
        ([4.0, 3.0, 2.0, 1.0], 3, 0.05, "routes part from those with theirs in iteration 4, 5.00% of them"),
        # Later than agreed on, nothing counts.
        ([4.0, 3.0, 2.0, 1.0, 7.0], 4, 1.0, None),
    ],
)
def test_series_may_part_when_choices_do(losses: list[float], moved_in: int, moved: float, words: str | None) -> None:
    agreements = [Agreement("loss", 1e-5, 4, Parting("routes", after=2, share=0.02, tolerance=0.01))]
    right = Course({"loss": [4.0, 3.0, 2.0, 1.0, 0.5]}, [[0.5, 0.5]] * 5)
    choices = [list(each) for each in right.choices]
    choices[moved_in] = [0.5 - moved, 0.5 + moved]
    broken = broken_agreement(agreements, Course({"loss": losses}, choices), right, "theirs")
    assert broken is None if words is None else words in str(broken)


@pytest.mark.parametrize("values", [(0, 0.1, 0.1), (1, 1.1, 0.1), (1, math.nan, 0.1), (1, 0.1, -0.1)])
def test_impossible_partings_are_refused(values: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="parting of routes"):
        Parting("routes", *values)


@pytest.mark.parametrize("values", [("loss", -1.0, None), ("loss", math.nan, None), ("loss", 0.1, 0)])
def test_impossible_agreements_are_refused(values: tuple[str, float, int | None]) -> None:
    with pytest.raises(ValueError, match="agreement on loss"):
        Agreement(*values)
