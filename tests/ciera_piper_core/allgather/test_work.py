"""The work of a started gather: ends once, tells its error every time, can be waited for again after a timeout."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.allgather.errors import GatherError
from ciera_piper_core.allgather.work import GatherWork

OUT = torch.zeros(3)


def test_it_is_work_for_torch() -> None:
    work = GatherWork("layer", OUT, None, lambda: None)
    assert isinstance(work, dist.Work)
    assert not work.is_completed()
    assert work.wait(timedelta(0))
    assert work.is_completed()
    assert work.wait_for_output() is OUT


def test_it_ends_once_and_only_when_what_is_underway_is_done() -> None:
    ends: list[int] = []
    underway: Future[None] = Future()
    work = GatherWork("layer", OUT, underway, lambda: ends.append(1))
    with pytest.raises(TimeoutError, match=r"'layer': not done after 0.01 s; wait again"):
        work.wait(timedelta(seconds=0.01))
    assert not ends
    underway.set_result(None)
    work.wait()
    work.wait()
    assert ends == [1]


def test_an_error_comes_at_every_wait_but_not_from_settling() -> None:
    def end() -> None:
        raise GatherError("lost")

    work = GatherWork("layer", OUT, None, end)
    work.settle()
    for _ in range(2):
        with pytest.raises(GatherError, match="lost"):
            work.wait()
    with pytest.raises(GatherError, match="lost"):
        work.wait_for_output()


def test_an_interrupted_end_never_counts_as_success() -> None:
    def end() -> None:
        raise KeyboardInterrupt

    work = GatherWork("layer", OUT, None, end)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    with pytest.raises(GatherError, match="'layer' was interrupted while it ended"):
        work.wait()
