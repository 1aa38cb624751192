"""The gain model: the paper's formula by hand, what shares a gather, the margin, the budget, and every verdict."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.allgather.capacity import CapacityPredictor
from ciera_piper_core.allgather.gain import DEFAULT_MARGIN, VERDICTS, GainModel, Selection, predict, select_shards
from ciera_piper_core.allgather.traffic import GatherTraffic
from ciera_piper_core.exponents.layout import BF16
from tests.ciera_piper_core.allgather.gain_cases import RATE, comm, gather, kernels, model, shard, side

MIB = 1 << 20


def verdicts(selection: Selection) -> dict[str, str]:
    return {one.name: one.verdict for one in selection.shards}


def test_one_shard_by_hand() -> None:
    # 1 Mi values, a quarter of the blocks changed, which codes to 100,000 bytes.
    one = shard("w", MIB, [0.25], [100_000])
    measured = GainModel(
        comm(1e9, ranks=4), replace(kernels(), encode=side(8e9, 4e9), decode=side(16e9, 8e9)), margin=0.0
    )
    (gain,) = select_shards([gather(one)], measured).gathers
    (result,) = gain.shards
    room = (100_000 + 100_000 // 8 + 256 + 63) // 64 * 64
    payload = 64 + 32 + MIB + 256 + room
    size = 2 * MIB
    # 0.25 of the blocks cost the difference between the rates.
    encode = size / 8e9 + 0.25 * (size / 4e9 - size / 8e9)
    decode = 3 * (size / 16e9 + 0.25 * (size / 8e9 - size / 16e9)) + size / 1e12
    assert result.plain_bytes == size
    assert gain.sent_bytes == payload
    assert gain.plain_s == pytest.approx(size / 1e9)
    assert result.comm_saved_s == pytest.approx((size - payload) / 1e9)
    assert result.encode_s == pytest.approx(encode)
    assert result.decode_s == pytest.approx(decode)
    assert result.gain_s == pytest.approx((size - payload) / 1e9 - encode - decode)
    assert gain.predicted_s == pytest.approx(payload / 1e9 + encode + decode + 1e-9)
    assert result.cache_bytes == 4 * MIB
    assert result.changed == 0.25
    assert result.verdict == "compress"


def test_pipelined_encoding_is_off_the_critical_path() -> None:
    one = gather(shard("w", MIB))
    here, hidden = (select_shards([one], replace(model(encode=1e10), pipelined=on)) for on in (False, True))
    assert hidden.shards[0].encode_s == 0
    assert hidden.gathers[0].gain_s - here.gathers[0].gain_s == pytest.approx(2 * MIB / 1e10)


def test_a_fast_network_compresses_nothing_and_stays_plain() -> None:
    selection = select_shards([gather(shard("w", MIB))], model(bytes_s=1e12))
    assert verdicts(selection) == {"w": "slower"}
    (only,) = selection.gathers
    assert only.predicted_s == only.plain_s
    assert only.sent_bytes == only.plain_bytes == 2 * MIB
    assert selection.selected == frozenset()
    assert selection.cache_bytes == 0
    assert selection.shards[0].gain_s < 0


def test_what_a_gather_saves_is_shared_by_bytes_and_adds_up() -> None:
    shards = [shard("a", MIB), shard("b", 3 * MIB, [0.5], [200_000]), shard("c", MIB // 2)]
    (gain,) = select_shards([gather(*shards)], model()).gathers
    saved = [one.saved_bytes for one in gain.shards]
    parts = [one.comm_saved_s for one in gain.shards]
    assert [part / parts[0] for part in parts] == pytest.approx([each / saved[0] for each in saved])
    assert sum(one.gain_s for one in gain.shards) == pytest.approx(gain.gain_s + 1e-9)
    assert gain.plain_s - sum(parts) == pytest.approx(gain.sent_bytes / RATE, rel=1e-6)


def test_a_fixed_cost_of_the_network_is_not_saved() -> None:
    # Two gathers instead of one do not each save the whole latency.
    slow_start = replace(model(), comm=comm(RATE, seconds=0.1))
    (gain,) = select_shards([gather(shard("w", MIB))], slow_start).gathers
    assert gain.shards[0].comm_saved_s == pytest.approx((gain.plain_bytes - gain.sent_bytes) / RATE, rel=0.05)


def test_incompressible_and_empty_shards_are_named() -> None:
    shards = [shard("good", MIB), shard("noise", 1000, [1.0], [2000.0]), shard("none", 0)]
    selection = select_shards([gather(*shards)], model())
    assert verdicts(selection) == {"good": "compress", "noise": "no bytes saved", "none": "empty"}
    assert selection.shards[1].saved_bytes < 0
    assert set(verdicts(selection).values()) <= set(VERDICTS)


def test_a_gather_of_nothing_at_all_stays_plain() -> None:
    selection = select_shards([gather(shard("none", 0))], model())
    assert verdicts(selection) == {"none": "empty"}
    assert selection.gathers[0].predicted_s == 0


def test_a_shard_whose_kernels_are_too_slow_leaves_the_others() -> None:
    # Both save half their bytes, but all blocks of one changed, and changed blocks are expensive.
    slow = replace(kernels(), encode=side(1e10, 1e9), decode=side(1e10, 1e9))
    shards = [shard("still", MIB), shard("busy", MIB, [1.0], [1000.0])]
    selection = select_shards([gather(*shards)], GainModel(comm(1e9), slow, margin=0.0))
    assert verdicts(selection) == {"still": "compress", "busy": "slower"}
    assert selection.shards[1].gain_s < 0


def test_shards_left_out_are_copied_and_that_may_cost_more_than_compressing_them() -> None:
    # A shard that is a little slower compressed, where copying it in and out is much slower still.
    slow_copy = replace(kernels(copy=0.4e9), encode=side(1e10, 1.55e9), decode=side(1e11))
    shards = [shard("still", 4 * MIB), shard("busy", MIB, [1.0], [1000.0])]
    chosen = select_shards([gather(*shards)], GainModel(comm(0.05e9), slow_copy, margin=0.0))
    assert verdicts(chosen) == {"still": "compress", "busy": "compress"}


def test_the_margin_keeps_small_gains_plain() -> None:
    carried = gather(shard("w", MIB))
    gain = select_shards([carried], model()).gathers[0]
    share = gain.gain_s / gain.plain_s
    assert select_shards([carried], model(margin=share * 0.99)).selected
    refused = select_shards([carried], model(margin=share * 1.01))
    assert verdicts(refused) == {"w": "gather too slow"}
    assert refused.gathers[0].gain_s == 0
    assert refused.shards[0].gain_s > 0


def test_what_every_compressed_gather_costs_counts_once() -> None:
    carried = gather(shard("a", MIB), shard("b", MIB))
    cheap, dear = (select_shards([carried], model(beyond=beyond)).gathers[0] for beyond in (1e-9, 1e-4))
    assert cheap.gain_s - dear.gain_s == pytest.approx(1e-4, rel=1e-3)


def test_the_budget_takes_the_largest_gain_a_byte() -> None:
    # The second gather's shard saves as much with less cache: fp32 would; here its blocks code to nothing.
    gathers = [
        gather(shard("poor", MIB, [0.5], [300_000]), name="first"),
        gather(shard("rich", MIB), name="second"),
    ]
    whole = select_shards(gathers, model())
    assert whole.cache_bytes == 8 * MIB
    half = select_shards(gathers, model(), budget_bytes=5 * MIB)
    assert half.selected == {("second", "rich")}
    assert verdicts(half) == {"poor": "over budget", "rich": "compress"}
    assert half.cache_bytes == 4 * MIB <= 5 * MIB
    assert half.gathers[0].predicted_s == half.gathers[0].plain_s


def test_a_small_shard_fits_where_a_large_one_does_not() -> None:
    shards = [shard("large", MIB), shard("small", MIB // 4)]
    chosen = select_shards([gather(*shards)], model(), budget_bytes=2 * MIB)
    assert chosen.selected == {("layer", "small")}


def test_no_budget_selects_nothing_and_runs_plain() -> None:
    selection = select_shards([gather(shard("w", MIB))], model(), budget_bytes=0)
    assert verdicts(selection) == {"w": "over budget"}
    assert selection.gathers[0].gain_s == 0


def test_what_the_budget_leaves_must_still_gain_the_margin() -> None:
    shards = [shard("large", 16 * MIB), shard("small", MIB // 16)]
    carried = gather(*shards)
    assert len(select_shards([carried], model(margin=0.2)).selected) == 2
    tight = select_shards([carried], model(margin=0.2), budget_bytes=MIB)
    assert verdicts(tight) == {"large": "over budget", "small": "gather too slow"}


def test_a_selection_can_be_predicted_whatever_its_worth() -> None:
    carried = gather(shard("a", MIB), shard("b", MIB))
    slow = model(bytes_s=1e12)
    assert not select_shards([carried], slow).selected
    forced = predict(carried, slow, {"a", "b"})
    assert forced.gain_s < 0
    assert forced.predicted_s > forced.plain_s
    assert predict(carried, slow, set()).predicted_s == forced.plain_s


def rooms_by_running(sizes: list[int], most: int) -> list[int]:
    """Rooms of the last pass over the sizes, of many, by running the predictor as gathers do."""
    predictor = CapacityPredictor(most)
    rooms, seen = [], []
    for size in sizes * 100:
        rooms.append(predictor.capacity())
        if seen:
            predictor.record(seen[-1])
        seen.append(size)
    return rooms[-len(sizes) :]


@pytest.mark.parametrize(
    "sizes", [[5000], [5000, 0], [5000, 0, 0, 5100, 0, 0], [1, 90_000, 40, 3, 17], list(range(0, 100_000, 997))]
)
def test_room_is_what_the_predictor_gives_in_the_long_run(sizes: list[int]) -> None:
    one = shard("w", MIB, [0.5] * len(sizes), [float(size) for size in sizes])
    (gain,) = select_shards([gather(one)], model()).gathers
    rooms = rooms_by_running(sizes, MIB)
    fixed = 64 + 32 + MIB + 256
    assert gain.sent_bytes == pytest.approx(fixed + np.mean(rooms))
    over = [max(size - room, 0) for size, room in zip(sizes, rooms, strict=True)]
    collectives = [(fixed + room) / RATE for room in rooms] + [each / RATE for each in over if each]
    assert gain.shards[0].comm_saved_s == pytest.approx(gain.plain_s - sum(collectives) / len(sizes), rel=1e-3)


def test_a_forward_and_backward_pass_take_turns() -> None:
    turns = gather(shard("w", MIB, [1.0, 0.0], [400_000, 0]))
    always = gather(shard("w", MIB, [1.0, 1.0], [400_000, 400_000]))
    half, full = (select_shards([each], model()).gathers[0].sent_bytes for each in (turns, always))
    assert full - half == pytest.approx(400_000 * 9 / 8 / 2, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_selection_is_near_the_best_of_all_subsets(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    shards = []
    for place in range(count):
        values = data.draw(st.integers(0, 1 << 22))
        changed = data.draw(st.floats(0, 1))
        ratio = data.draw(st.floats(0, 0.4))
        shards.append(shard(f"s{place}", values, [changed], [changed * ratio * values]))
    rates = [10.0 ** data.draw(st.floats(8.5, 10.5)) for _ in range(3)]
    priced = GainModel(
        comm(rates[0]),
        replace(kernels(copy=1e10), encode=side(rates[1], rates[1] / 3), decode=side(rates[2])),
        margin=0.0,
    )
    carried = gather(*shards)
    (chosen,) = select_shards([carried], priced).gathers
    names = [one.name for one in shards]
    best = max(
        predict(carried, priced, set(subset)).gain_s
        for size in range(count + 1)
        for subset in combinations(names, size)
    )
    assert chosen.gain_s >= -1e-12
    # Exact where it is all or nothing; in between, what copying the others costs may tip one shard.
    assert best - chosen.gain_s <= 0.1 * chosen.plain_s + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=6), st.integers(0, 1 << 24))
def test_a_budget_is_never_exceeded_and_times_are_never_worse(sizes: list[int], budget: int) -> None:
    gathers = [gather(shard("w", size), name=f"g{place}") for place, size in enumerate(sizes)]
    selection = select_shards(gathers, model(), budget)
    assert selection.cache_bytes <= budget
    assert all(each.predicted_s <= each.plain_s for each in selection.gathers)


def test_notes_say_what_is_not_measured() -> None:
    small = comm(1e9)
    short = replace(small, curve=replace(small.curve, sizes=small.curve.sizes[:10], seconds=small.curve.seconds[:10]))
    selection = select_shards([gather(shard("w", MIB))], GainModel(replace(short, unsettled=3), kernels(beyond=None)))
    assert len(selection.notes) == 3
    assert "Comm is extrapolated for 2 of 2" in selection.notes[0]
    assert "beyond kernels and collective was not measured" in selection.notes[1]
    assert "3 of 10 points of Comm" in selection.notes[2]
    assert select_shards([gather(shard("w", MIB))], model()).notes == ()


@pytest.mark.parametrize("margin", [-0.1, 1.0, float("nan")])
def test_margins_that_cannot_be_are_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        model(margin=margin)
    assert 0 < DEFAULT_MARGIN < 1


def test_names_twice_and_budgets_below_zero_are_refused() -> None:
    one = gather(shard("w", MIB))
    with pytest.raises(ValueError, match="two of gather 'layer'"):
        select_shards([one, one], model())
    with pytest.raises(ValueError, match="shard 'w'"):
        select_shards([gather(shard("w", 1), shard("w", 2))], model())
    with pytest.raises(ValueError, match="budget must be 0 or more"):
        select_shards([one], model(), -1)


def test_many_shards_are_judged_in_little_time() -> None:
    import time

    random = np.random.default_rng(0)
    steps = 200
    gathers: list[GatherTraffic] = []
    for layer in range(16):
        shards: list[Any] = []
        for place in range(64):
            changed = random.random(steps)
            values = int(random.integers(1000, 1 << 22))
            shards.append(shard(f"s{place}", values, changed, changed * values * 0.3))  # type: ignore[arg-type]
        gathers.append(GatherTraffic(f"g{layer}", BF16, 512, "auto", tuple(shards)))
    begun = time.thread_time()
    selection = select_shards(gathers, model(), 1 << 31)
    assert time.thread_time() - begun < 5
    assert len(selection.shards) == 1024
