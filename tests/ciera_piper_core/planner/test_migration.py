"""Cost of moving experts: the paper's formula, in true units."""

from __future__ import annotations

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.migration import Migration, migration_in, migration_of
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.platforms import load_platform


def test_the_cost_is_sixteen_bytes_a_parameter_over_the_group() -> None:
    cost = Migration("deepseek-v3", 256, 7168, 2048, 3)
    assert cost.bytes_per_gpu == 48 * 256 * 7168 * 2048 / 8 == 22_548_578_304
    assert cost.seconds == pytest.approx(0.45097, rel=1e-4)
    assert cost.expected_bytes_per_gpu == cost.bytes_per_gpu * 7 / 8


def test_it_follows_from_an_architecture() -> None:
    architecture = catalogue.load("deepseek-v3")
    assert migration_of(architecture).bytes_per_gpu == 22_548_578_304
    assert migration_of(architecture, gpus=64, bandwidth_bytes_s=25e9).seconds == 22_548_578_304 / 8 / 25e9


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus must be 1 or more, not 0"):
        Migration("any", 8, 16, 16, 3, gpus=0)


@pytest.mark.parametrize(
    ("optimizer", "precision", "each"),
    [("adam", "bf16", 16), ("sgd", "bf16", 8), ("sgd_momentum", "fp16", 12)],
)
def test_a_strategys_own_group_optimizer_and_links_count(optimizer: str, precision: str, each: int) -> None:
    frontier = load_platform("frontier")
    question = Question(catalogue.load("deepseek-v3"), frontier, 64, optimizer=optimizer, precision=precision)
    inside = migration_in(question, Strategy(8, 8, 1, 1, 32, 32, "1f1b", "full", 1, "flat"))
    assert inside is not None
    assert inside.bytes_per_gpu == each * 3 * 256 * 7168 * 2048 / 8
    assert inside.bandwidth_bytes_s == frontier.link("all_to_all", crosses=False).bytes_s
    assert inside.expected_seconds == inside.seconds * 7 / 8
    cut = migration_in(question, Strategy(2, 16, 1, 2, 32, 32, "1f1b", "full", 1, "flat"))
    assert cut is not None
    assert cut.bytes_per_gpu == each * 3 * 256 * 7168 * 1024 / 16
    assert cut.bandwidth_bytes_s == frontier.link("all_to_all", crosses=True).bytes_s / 2


def test_adafactor_keeps_hardly_any_moments() -> None:
    question = Question(catalogue.load("deepseek-v3"), load_platform("frontier"), 64, optimizer="adafactor")
    cost = migration_in(question, Strategy(8, 8, 1, 1, 32, 32, "1f1b", "full", 1, "flat"))
    assert cost is not None
    assert 8 < cost.bytes_per_parameter < 8.01


def test_without_expert_parallelism_nothing_moves() -> None:
    question = Question(catalogue.load("mixtral-8x7b"), load_platform("frontier"), 8)
    assert migration_in(question, Strategy(8, 1, 1, 1, 32, 32, "1f1b", "full", 1, "flat")) is None
