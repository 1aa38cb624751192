"""The names of the proof: each is known to the module that makes it real."""

from __future__ import annotations

import pytest

from bench.errors import UsageError
from bench.stats.made_up_histories import make_histories
from bench.stats.proof_scenarios import HISTORY_SCENARIOS, PAIR_SCENARIOS, metrics_of


@pytest.mark.parametrize("scenario", HISTORY_SCENARIOS)
def test_every_history_scenario_can_be_made_and_has_metrics(scenario: str) -> None:
    assert metrics_of(scenario)
    assert len(make_histories(scenario, 0.05, 0.02, 1, 2).values) == 2


def test_no_name_is_of_both_kinds() -> None:
    assert not PAIR_SCENARIOS.keys() & set(HISTORY_SCENARIOS)
    with pytest.raises(UsageError, match="unknown scenario"):
        metrics_of("nothing")
