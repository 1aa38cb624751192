"""Borrowed buffers: used again, grown, never handed out twice."""

from __future__ import annotations

import torch

from ciera_piper_core.allgather.buffers import BufferPool


def test_a_buffer_that_came_back_is_used_again() -> None:
    pool = BufferPool(torch.device("cpu"))
    first = pool.take(100)
    pool.give(first)
    assert pool.take(60).data_ptr() == first.data_ptr()
    assert pool.owned_bytes == 112


def test_two_borrowers_never_share() -> None:
    pool = BufferPool(torch.device("cpu"))
    first, second = pool.take(100), pool.take(100)
    assert first.data_ptr() != second.data_ptr()
    assert pool.owned_bytes == 224


def test_the_smallest_that_fits_is_taken() -> None:
    pool = BufferPool(torch.device("cpu"))
    small, large = pool.take(10), pool.take(1_000)
    pool.give(large)
    pool.give(small)
    assert pool.take(10).data_ptr() == small.data_ptr()
    assert pool.take(500).data_ptr() == large.data_ptr()


def test_where_none_fits_the_largest_is_replaced() -> None:
    pool = BufferPool(torch.device("cpu"))
    for buffer in (pool.take(10), pool.take(1_000)):
        pool.give(buffer)
    assert pool.take(2_000).numel() == 2_250
    assert pool.owned_bytes == 2_250 + 11


def test_growth_of_an_eighth_needs_no_new_buffer() -> None:
    pool = BufferPool(torch.device("cpu"))
    first = pool.take(8_000)
    pool.give(first)
    assert pool.take(9_000).data_ptr() == first.data_ptr()


def test_a_forgotten_buffer_does_not_come_back() -> None:
    pool = BufferPool(torch.device("cpu"))
    pool.forget(pool.take(64))
    assert pool.owned_bytes == 0
