"""The pool of buffers: sizes, reuse, bounds, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ciera_piper_core.exponents.workspace import Workspace


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000, 5_000_001])
def test_a_buffer_has_the_size_asked_for_and_little_more(size: int) -> None:
    buffer = Workspace().take(size)
    assert buffer.dtype is torch.uint8
    assert size <= buffer.numel() <= max(size * 9 / 8, size + 4096)


def test_a_buffer_given_back_is_used_again_but_not_for_something_much_smaller() -> None:
    workspace = Workspace()
    first = workspace.take(1_000_000)
    workspace.give(first)
    assert workspace.take(100).data_ptr() != first.data_ptr()
    assert workspace.take(900_000).data_ptr() == first.data_ptr()
    assert workspace.take(900_000).data_ptr() != first.data_ptr()


def test_no_more_than_the_bound_is_kept() -> None:
    workspace = Workspace(keep_bytes=2_500_000)
    buffers = [workspace.take(1_000_000) for _ in range(4)]
    for buffer in buffers:
        workspace.give(buffer)
    assert 0 < workspace.free_bytes <= 2_500_000


def test_a_borrowed_buffer_comes_back_after_an_error_too() -> None:
    workspace = Workspace()
    with pytest.raises(IndexError), workspace.borrow(5000) as buffer:
        buffer[5000]
    assert workspace.free_bytes >= 5000


def test_threads_never_hold_the_same_buffer() -> None:
    workspace = Workspace()

    def use(mark: int) -> bool:
        for _ in range(200):
            with workspace.borrow(3000) as buffer:
                buffer.fill_(mark)
                if not bool((buffer == mark).all()):
                    return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(4)))
