"""What the options of migration mean."""

from __future__ import annotations

import pytest

from ciera_piper_core.moe.migration.trigger import Policy
from ciera_piper_core.systems.expert_migration import OPTIONS, policy_of

DEFAULTS = {name: option.default for name, option in OPTIONS.items()}


def test_experts_stay_unless_asked() -> None:
    assert policy_of(DEFAULTS) is None
    assert policy_of({}) is None


@pytest.mark.parametrize(("every", "window"), [(1, 1), (7, 7), (100, 10)])
def test_window_is_within_the_interval(every: int, window: int) -> None:
    assert policy_of({**DEFAULTS, "migrate": every}) == Policy(check_every=every, window=window)


def test_spare_room_and_solver() -> None:
    policy = policy_of({"migrate": 20, "spare": 2, "solver": "paper"})
    assert policy == Policy(check_every=20, window=10, spare_experts=2, solver="paper")


def test_refuses_numbers_below_0() -> None:
    with pytest.raises(ValueError, match="migrate=-1"):
        policy_of({**DEFAULTS, "migrate": -1})
    with pytest.raises(ValueError, match="spare_experts"):
        policy_of({**DEFAULTS, "migrate": 1, "spare": -1})
