"""Steps of changing traffic: what a rank does in each, and that both sides of a comparison see the same one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.definitions import Work
from suites.exchange import KeyedData, Part
from suites.stepped_exchange import Step, SteppedExchange, steps_of_traffic


def test_a_rank_knows_its_rows_and_where_they_are_in_each_senders_data() -> None:
    traffic = np.array([[[1, 2], [3, 4]], [[5, 5], [5, 5]]])
    uneven, even = steps_of_traffic(traffic, 1, 10)
    assert uneven == Step((3, 4), (2, 4), 7, 6, (Part(0, 10, 20), Part(1, 30, 40)))
    assert even == Step(None, None, 10, 10, (Part(0, 50, 50), Part(1, 50, 50)))


class Loopback:
    """Sends to itself, and remembers what."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def exchange(self, send: torch.Tensor, send_splits: Any, recv_splits: Any, out: torch.Tensor) -> None:
        self.rows.append(len(send))
        out.copy_(send)


def workload(flat: Loopback | None) -> tuple[SteppedExchange, Loopback]:
    algorithm: Any = Loopback()
    steps = steps_of_traffic(np.array([[[1]], [[2]], [[3]]]), 0, 4)
    other: Any = flat
    made = SteppedExchange(algorithm, other, steps, 4, torch.int8, "cpu", KeyedData(3, 1), 0, Work(bytes=1))
    return made, algorithm


def test_each_iteration_is_the_next_step() -> None:
    made, algorithm = workload(None)
    for _ in range(4):
        made.prepare()
        made.run()
    assert algorithm.rows == [1, 2, 3, 1]
    assert made.baseline is None
    assert made.check() == 0


def test_both_sides_of_an_iteration_see_the_same_step() -> None:
    flat = Loopback()
    made, algorithm = workload(flat)
    assert made.baseline is not None
    for number in range(4):
        sides = [made.run, made.baseline]
        for side in sides if number % 2 else reversed(sides):
            made.prepare()
            side()
    assert algorithm.rows == flat.rows == [1, 2, 3, 1]


def test_what_a_step_leaves_wrong_is_counted_for_the_last_run_and_for_all_steps() -> None:
    made, _ = workload(None)

    class Spoils(Loopback):
        def exchange(self, send: torch.Tensor, send_splits: Any, recv_splits: Any, out: torch.Tensor) -> None:
            out.copy_(send)
            out[0, 0] += 1

    made._algorithm = Spoils()  # type: ignore[assignment]
    made.prepare()
    made.run()
    assert made.check() == 1 + 3
