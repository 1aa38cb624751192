"""Plans and their answers."""

from __future__ import annotations

import pytest

from ciera_piper_core.alltoall.plan import Plan


def test_an_answer_goes_the_other_way() -> None:
    plan = Plan((1, 2), (3, 0), ((1,), (2,)), ((3,), (0,)))
    assert plan.reverse() == Plan((3, 0), (1, 2), ((3,), (0,)), ((1,), (2,)))
    assert plan.reverse().reverse() == plan


def test_splits_are_both_given_or_neither() -> None:
    assert Plan(None, None).reverse() == Plan(None, None)
    with pytest.raises(ValueError, match="both given, or both None"):
        Plan((1, 2), None)
