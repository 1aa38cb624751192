"""A pool keeps order, waits for all even if one fails, and works in a forked process."""

from __future__ import annotations

import os
import threading
import time

import pytest

from ciera_piper_core.exponents.native.pool import Pool


def test_results_come_in_order_and_the_calling_thread_takes_part() -> None:
    threads: dict[int, str] = {}

    def work(item: int) -> int:
        threads[item] = threading.current_thread().name
        return item * item

    assert Pool(3).map(work, range(7)) == [0, 1, 4, 9, 16, 25, 36]
    assert threads[0] == threading.current_thread().name
    assert all(name.startswith("ciera") for item, name in threads.items() if item)


def test_one_thread_or_one_item_starts_no_others() -> None:
    before = threading.active_count()
    assert Pool(1).map(str, [1, 2]) == ["1", "2"]
    assert Pool(4).map(str, [1]) == ["1"]
    assert Pool(4).map(str, []) == []
    assert threading.active_count() == before


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_is_raised_only_after_all_have_ended(failing: int) -> None:
    ended: list[int] = []

    def work(item: int) -> None:
        if item == failing:
            raise RuntimeError(f"item {item}")
        time.sleep(0.05)
        ended.append(item)

    with pytest.raises(RuntimeError, match=f"item {failing}"):
        Pool(4).map(work, range(4))
    assert sorted(ended) == [item for item in range(4) if item != failing]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    pool = Pool(2)
    assert pool.map(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if child == 0:
        os._exit(0 if pool.map(abs, [-1, -2]) == [1, 2] else 1)
    deadline = time.monotonic() + 10
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Pool(0)
