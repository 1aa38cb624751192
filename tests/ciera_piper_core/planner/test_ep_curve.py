"""Memory over expert parallelism: the least for each EP, within one hop or marked as beyond it."""

from __future__ import annotations

import numpy as np

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.ep_curve import memory_over_ep
from ciera_piper_core.planner.search import search
from ciera_piper_core.planner.strategy import Question
from ciera_piper_core.platforms import load_platform


def test_points_are_the_least_of_each_ep() -> None:
    question = Question(catalogue.load("deepseek-v3"), load_platform("frontier"), 256)
    points = memory_over_ep(question, [128, 256])
    assert {point.gpus for point in points} == {128, 256}
    of_many = [point for point in points if point.gpus == 256]
    assert [point.ep for point in of_many] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert all(point.state_bytes < point.peak_memory_bytes for point in points)
    assert all(point.single_hop == (point.ep * point.tp <= 32 or point.ep == 1) for point in points)
    # What the search finds within one hop is never below the curve.
    plan = search(question)
    for ep in np.unique(plan.fitting.ep):
        least = plan.estimates.peak_memory_bytes[plan.fitting.ep == ep].min()
        assert least >= next(point.peak_memory_bytes for point in of_many if point.ep == ep) * (1 - 1e-9)


def test_one_gpu_has_one_point() -> None:
    question = Question(catalogue.load("olmoe-1b-7b"), load_platform("frontier"), 1)
    assert [(point.gpus, point.ep) for point in memory_over_ep(question, [1])] == [(1, 1)]
