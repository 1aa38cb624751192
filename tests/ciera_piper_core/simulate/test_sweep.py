"""A sweep: each point is what an engine says of it, and what cannot be says why."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.alltoall.traffic import traffic_matrix
from ciera_piper_core.alltoall.traffic_steps import traffic_steps
from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.flows import schedule
from ciera_piper_core.simulate.fluid import predict
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.sweep import ROW_BYTES, Point, Sweep, predict_sweep, size_reason
from suites import alltoall as suite

if TYPE_CHECKING:
    from pathlib import Path

FRONTIER = load_machine("frontier")
DEFAULT = Sweep(FRONTIER, tuple(2**power for power in range(1, 13)), tuple(2**power for power in range(13, 33)))


def of(points: list[Point], **wanted: Any) -> list[Point]:
    return [point for point in points if all(getattr(point, name) == value for name, value in wanted.items())]


def test_the_default_sweep_is_whole_and_quick() -> None:
    predict_sweep(replace(DEFAULT, ranks=(16,)))
    begun = time.process_time()
    points = predict_sweep(DEFAULT)
    assert time.process_time() - begun < 5
    assert len(points) == 12 * 20 * 5 == 5 * DEFAULT.cells
    order = [(point.ranks, point.size, ALGORITHMS.index(point.algorithm)) for point in points]
    assert order == sorted(order)
    assert all(point.prediction and point.prediction.seconds > 0 for point in points)


def test_a_uniform_point_is_the_closed_form_s() -> None:
    points = predict_sweep(Sweep(FRONTIER, (64, 256), (1 << 20, 1 << 26), ("halo_v1",)))
    assert [(point.ranks, point.nodes, point.size) for point in points] == [
        (64, 8, 1 << 20),
        (64, 8, 1 << 26),
        (256, 32, 1 << 20),
        (256, 32, 1 << 26),
    ]
    for point in points:
        own = UniformModel.build(FRONTIER, "halo_v1", point.ranks).prediction(point.size)
        flat = UniformModel.build(FRONTIER, "flat", point.ranks).prediction(point.size)
        assert point.prediction == own
        assert point.speedup == flat.seconds / own.seconds
        assert point.largest_bytes == point.size
        assert 0 < point.bottleneck_share <= 1


def test_a_skewed_point_is_the_fluid_s_of_the_suite_s_matrix() -> None:
    size, ranks, seed = 1 << 20, 24, 7
    (point,) = predict_sweep(Sweep(FRONTIER, (ranks,), (size,), ("two_phase",), ("zipf",), seed))
    matrix = traffic_matrix("zipf", ranks, size // ROW_BYTES, seed) * ROW_BYTES
    job = FRONTIER.job(ranks)
    assert point.prediction is not None
    assert point.prediction.seconds == predict(FRONTIER, schedule("two_phase", job, matrix)).seconds
    assert point.flat_s == predict(FRONTIER, schedule("flat", job, matrix)).seconds
    assert point.largest_bytes == max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()) > size
    assert ROW_BYTES == suite.ROW_BYTES


def test_the_flat_algorithm_is_one_time_faster_than_itself() -> None:
    for point in predict_sweep(Sweep(FRONTIER, (2, 16, 100), (4096, 1 << 24), ("flat",), ("uniform", "hot_rank"))):
        if point.prediction:
            assert point.speedup == 1


def test_the_seed_places_the_hot_rank() -> None:
    def seconds(seed: int) -> list[float]:
        points = predict_sweep(Sweep(FRONTIER, (20,), (1 << 22,), ALGORITHMS, ("zipf",), seed))
        return [point.prediction.seconds for point in points if point.prediction]

    assert seconds(1) == seconds(1)
    assert seconds(1) != seconds(2)


def test_traffic_of_several_steps_counts_with_its_median_step(tmp_path: Path) -> None:
    (rotating,) = predict_sweep(Sweep(FRONTIER, (16,), (1 << 20,), ("halo_v1",), ("rotating_hot_rank",), 3))
    steps = traffic_steps("rotating_hot_rank", 16, (1 << 20) // ROW_BYTES, 3) * ROW_BYTES
    each = sorted(predict(FRONTIER, schedule("halo_v1", FRONTIER.job(16), step)).seconds for step in steps)
    assert rotating.prediction is not None
    assert rotating.prediction.seconds == each[7]
    trace = tmp_path / "trace.jsonl"
    tokens = ([1] * 16, [9, *[1] * 15], [90, *[1] * 15])
    trace.write_text("\n".join(json.dumps({"counts": counts}) for counts in tokens))
    (replayed,) = predict_sweep(Sweep(FRONTIER, (16,), (1 << 24,), ("flat",), (f"replay:{trace}",)))
    even, skewed = (1 << 24), traffic_steps(f"replay:{trace}", 16, (1 << 24) // ROW_BYTES, 0)
    assert replayed.prediction is not None
    middle = predict(FRONTIER, schedule("flat", FRONTIER.job(16), skewed[1] * ROW_BYTES))
    assert replayed.prediction.seconds == middle.seconds
    assert replayed.largest_bytes > 2 * even
    points = predict_sweep(Sweep(FRONTIER, (16, 32), (1 << 20,), ("flat",), (f"replay:{trace}",)))
    assert "16 experts cannot be replayed on 32 ranks" in points[1].reason


def test_what_cannot_be_has_a_reason() -> None:
    small = replace(FRONTIER, max_gpus=16)
    points = predict_sweep(Sweep(small, (1, 2, 16, 32), (8, 1 << 20), ("flat",), ("uniform", "idle_rank")))
    assert of(points, ranks=1)[0].reason == "an all-to-all needs at least 2 ranks"
    assert "has 16 GPUs" in of(points, ranks=32)[0].reason
    assert of(points, ranks=16, size=8)[0].reason == "8 bytes give 16 ranks less than a byte each"
    assert "nobody is left to talk to" in of(points, ranks=2, traffic="idle_rank")[0].reason
    for point in points:
        assert (point.prediction is None) == (point.speedup is None) == bool(point.reason)


def test_rows_of_skewed_traffic_are_whole() -> None:
    assert "no whole rows of 64 bytes" in size_reason("zipf", 2, 1000)
    assert "less than a row of 64 bytes each" in size_reason("zipf", 64, 1024)
    assert "at most 8192 ranks" in size_reason("zipf", 1 << 14, 1 << 30)
    assert "at most 2048 ranks" in size_reason("rotating_hot_rank", 4096, 1 << 30)
    assert "at most 1024 ranks" in size_reason("replay:trace", 2048, 1 << 30)
    assert "more than can be dealt out" in size_reason("zipf", 64, 1 << 50)
    assert size_reason("zipf", 64, 4096) == ""


def test_a_sweep_in_which_nothing_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing can be predicted: an all-to-all needs at least 2 ranks"):
        predict_sweep(Sweep(FRONTIER, (1,), (1024,)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithms": ("ring",)}, "unknown algorithm 'ring'; known: flat"),
        ({"traffic": ("rush",)}, "unknown traffic 'rush'; known: uniform"),
        ({"ranks": ()}, "one or more ranks"),
        ({"sizes": (8, 8)}, "one or more sizes, each once"),
        ({"ranks": (0, 2)}, "at least 1 rank"),
    ],
)
def test_a_wrong_sweep_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(DEFAULT, **change)


def test_progress_says_what_comes() -> None:
    said: list[str] = []
    predict_sweep(Sweep(FRONTIER, (4, 16), (4096,), ("flat",), ("zipf",)), said.append)
    assert said[0] == "zipf traffic, 4 GPUs"
    assert said[-1] == "zipf traffic, 16 GPUs, 4096 bytes, flat"


def test_a_machine_without_terms_gives_the_pure_fluid() -> None:
    machine = FRONTIER.fluid
    uniform = predict_sweep(Sweep(machine, (32,), (1 << 20,)))
    assert all(point.prediction and not point.prediction.assumed for point in uniform)
    # Without terms, flat moves the fewest bytes.
    assert all((point.speedup or 0) <= 1 + 1e-9 for point in uniform)
