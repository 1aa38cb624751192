"""Choices from measured curves: crossovers, margins, placements and skews that were not measured, and profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ciera_piper_core.alltoall.crossovers import CHOICES, Crossovers, from_points, from_profile, kind_skew

SIZES = (1024.0, 16384.0, 262144.0)


def points_of(
    times: dict[str, tuple[float, ...]], nodes: int = 4, ranks: int = 8, traffic: str = "uniform"
) -> list[tuple[str, int, int, str, float, float]]:
    return [
        (name, nodes, ranks, traffic, size, microseconds * 1e-6)
        for name, row in times.items()
        for size, microseconds in zip(SIZES, row, strict=False)
    ]


TIMES: dict[str, tuple[float, ...]] = {"flat": (900, 1000, 5000), "halo_v1": (400, 990, 6000)}
SKEWS = {("uniform", 8): 1.0, ("hot_rank", 8): 4.5, ("uniform", 2): 1.0, ("uniform", 16): 1.0}


def test_the_fastest_at_the_size_is_chosen_and_the_reason_has_the_times() -> None:
    table = from_points(points_of(TIMES), SKEWS, "profile p.json")
    small, large = table.choose(4, 8, 1024), table.choose(4, 8, 262144)
    assert (small.algorithm, large.algorithm) == ("halo_v1", "flat")
    assert small.seconds == pytest.approx({"flat": 900e-6, "halo_v1": 400e-6})
    assert small.reason == (
        "halo_v1 for 1024 bytes a rank, skew 1.00: expected us are halo_v1 400, flat 900"
        " (uniform traffic, profile p.json)"
    )


def test_a_gain_within_noise_is_no_reason_to_leave_flat() -> None:
    choice = from_points(points_of(TIMES), SKEWS, "p").choose(4, 8, 16384)
    assert choice.algorithm == "flat"
    assert "halo_v1 is not faster than flat by more than 3%" in choice.reason


def test_between_and_beyond_sizes() -> None:
    table = from_points(points_of({"flat": (100, 100, 1600), "halo_v0": (200, 200, 400)}), SKEWS, "p")
    # On logarithmic axes flat goes from 100 to 1600 over four octaves of bytes, halo from 200 to 400.
    assert table.choose(4, 8, 65536).seconds == pytest.approx({"flat": 400e-6, "halo_v0": 282.84e-6}, rel=1e-3)
    beyond = table.choose(4, 8, 2 * 262144)
    assert beyond.seconds == pytest.approx({"flat": 3200e-6, "halo_v0": 800e-6})
    assert "beyond the 1024 to 2.621e+05 bytes that were measured" in beyond.reason
    assert table.choose(4, 8, 0).algorithm == "flat"


def test_the_nearest_skew_counts() -> None:
    hot = points_of({"flat": (900, 900, 900), "two_phase": (300, 300, 300)}, traffic="hot_rank")
    idle = points_of({"flat": (900, 900, 900), "halo_v2": (300, 300, 300)}, traffic="idle_rank")
    table = from_points([*points_of(TIMES), *hot, *idle], {**SKEWS, ("idle_rank", 8): 8 / 7}, "p")

    def chosen(skewed: float) -> str:
        return table.choose(4, 8, 1024, skewed, equal=False).algorithm

    assert chosen(1.0) == chosen(1.2) == "halo_v2"
    assert chosen(4.0) == chosen(8.0) == "two_phase"
    # The middle between 1.14 and 4.5, by ratio, is 2.27.
    assert chosen(2.2) == "halo_v2"
    assert chosen(2.3) == "two_phase"
    # Equal shares are what uniform traffic has.
    assert table.choose(4, 8, 1024).algorithm == "halo_v1"


def test_uneven_shares_go_by_uniform_traffic_if_there_is_no_other() -> None:
    table = from_points(points_of(TIMES), SKEWS, "p")
    assert table.choose(4, 8, 1024, 2.0, equal=False).algorithm == "halo_v1"
    hot = points_of({"flat": (900, 900, 900), "two_phase": (300, 300, 300)}, traffic="hot_rank")
    assert from_points(hot, SKEWS, "p").choose(4, 8, 1024).algorithm == "two_phase"


def test_a_placement_up_to_twice_as_large_borrows_and_says_so() -> None:
    table = from_points(points_of(TIMES), SKEWS, "p")
    near = table.choose(8, 16, 1024)
    assert near.algorithm == "halo_v1"
    assert "of 8 ranks on 4 node(s), the nearest to 16 on 8" in near.reason
    assert table.covers(2, 4)
    for nodes, ranks in ((16, 32), (1, 8), (4, 32)):
        assert not table.covers(nodes, ranks)
        choice = table.choose(nodes, ranks, 1024)
        assert choice.algorithm == "flat"
        assert "nothing was measured" in choice.reason


def test_an_exact_placement_comes_before_a_near_one() -> None:
    others = points_of({"flat": (900, 900, 900), "two_phase": (1, 1, 1)}, nodes=8, ranks=16)
    table = from_points([*points_of(TIMES), *others], SKEWS, "p")
    assert table.choose(4, 8, 1024).algorithm == "halo_v1"
    assert table.choose(8, 16, 1024).algorithm == "two_phase"


def test_only_sizes_that_all_algorithms_have_are_compared() -> None:
    table = from_points(points_of({"flat": (100, 200, 300), "halo_v2": (50, 60)}), SKEWS, "p")
    assert {tuple(curve.seconds.sizes) for curve in table.curves} == {SIZES[:2]}
    assert from_points(points_of({"flat": (1, 2, 3)}), SKEWS, "p").curves == ()
    assert from_points(points_of({"halo_v1": (1, 2, 3), "halo_v2": (1, 2, 3)}), SKEWS, "p").curves == ()


def profile_with(curves: list[dict[str, Any]]) -> str:
    return json.dumps({"schema_version": 1, "collectives": curves})


def curve(algorithm: str, microseconds: float, **changes: Any) -> dict[str, Any]:
    return {
        "suite": "alltoall",
        "op": "all_to_all",
        "algorithm": algorithm,
        "traffic": "uniform",
        "ranks": 8,
        "nodes": 4,
        "device": "cpu",
        "scope": "cluster",
        "points": [{"bytes": 1024, "latency_us": microseconds}],
        **changes,
    }


def test_a_profile_gives_curves_of_the_suite(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    curves = [
        curve("flat", 9),
        curve("halo_v1", 3),
        curve("auto", 1),
        curve("dedup", 1, op="dispatch"),
        curve("two_phase", 1, suite="other"),
        curve("two_phase", 2, traffic="hot_rank"),
        curve("flat", 8, traffic="hot_rank"),
        curve("halo_v2", 1, scope="lab"),
        curve("halo_v2", 1, device="cuda"),
    ]
    path.write_text(profile_with(curves))
    for given in (path, tmp_path):
        table = from_profile(given)
        assert {(one.algorithm, one.traffic) for one in table.curves} == {
            ("flat", "uniform"),
            ("halo_v1", "uniform"),
            ("flat", "hot_rank"),
            ("two_phase", "hot_rank"),
        }
        assert table.choose(4, 8, 1024).algorithm == "halo_v1"
        assert table.choose(4, 8, 1024, 4.4, equal=False).algorithm == "two_phase"


def test_an_emulated_network_counts_where_no_real_one_does(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_with([curve("flat", 9, scope="lab"), curve("halo_v2", 1, scope="lab")]))
    assert from_profile(path).choose(4, 8, 1024).algorithm == "halo_v2"
    assert from_profile(path, "cuda").curves == from_profile(path).curves[:0]


def test_a_profile_of_flat_alone_offers_no_choice() -> None:
    data = Path(__file__).resolve().parents[2] / "data" / "platform_profile_cpu.json"
    assert from_profile(data).curves == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read"), ("{", "no platform profile"), ("[]", "version 1"), ('{"schema_version": 2}', "version 1")],
)
def test_what_is_no_profile_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        from_profile(path)


def test_skews_of_kinds() -> None:
    assert kind_skew("uniform", 8) == 1
    # Half of all and an eighth of the rest, from each of eight.
    assert kind_skew("hot_rank", 8) == pytest.approx(4.5, rel=1e-3)
    assert kind_skew("idle_rank", 8) == pytest.approx(8 / 7, rel=1e-3)


def test_auto_itself_is_no_choice() -> None:
    assert "auto" not in CHOICES
    assert Crossovers(()).choose(4, 8, 1024).algorithm == "flat"
