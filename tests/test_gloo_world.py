"""The test world itself: it reports ranks that raise, die or hang, and leaves no process behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.gloo_world import Ending, endings_of_world, run_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.suite import Context


def raises(context: Context) -> None:
    if context.group.rank == 1:
        raise RuntimeError("out of cheese")
    context.group.barrier()


def dies(context: Context) -> None:
    if context.group.rank == 1:
        os._exit(3)
    time.sleep(60)


def hangs(context: Context) -> None:
    if context.group.rank == 1:
        time.sleep(60)


def test_results_come_by_rank(tmp_path: Path) -> None:
    assert run_world(3, lambda context: context.group.rank * 10, tmp_path) == [0, 10, 20]


@pytest.mark.parametrize(
    ("body", "message"),
    [(raises, "rank 1 raised:(.|\n)*out of cheese"), (dies, "rank 1 died"), (hangs, r"rank\(s\) .*1.* did not end")],
)
def test_a_rank_that_fails_is_named(body: Callable[[Context], None], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        run_world(2, body, tmp_path, timeout_s=3)
    assert multiprocessing.active_children() == []


def test_ranks_are_left_to_end_by_themselves(tmp_path: Path) -> None:
    def body(context: Context) -> int:
        if context.group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if context.group.rank == 2:
            raise ValueError("out of cheese")
        time.sleep(0.3)
        return context.group.rank

    ended = endings_of_world(3, body, tmp_path)
    assert ended == [Ending(0), Ending(killed=True), Ending(error="ValueError: out of cheese")]


def test_a_rank_that_does_not_end_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"rank\(s\) \[1\] did not end in time"):
        endings_of_world(2, hangs, tmp_path, together_s=2)
    assert multiprocessing.active_children() == []
