"""Views of an exchange's tensors: remembered for the very same ones only, and no reason to keep memory."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ciera_piper_core.alltoall.views import make_views

EQUAL = (None, None)


def test_the_same_tensors_are_known_again() -> None:
    send, out = torch.zeros(4, 2), torch.zeros(4, 2)
    views = make_views(EQUAL, send, out, 2)
    assert views.are_of(EQUAL, send, out)
    assert views.source(send).data_ptr() == send.data_ptr()
    assert views.target(out) is views.target(out)
    assert not views.are_of(EQUAL, send.clone(), out)
    assert not views.are_of(EQUAL, send[:], out)
    assert not views.are_of(((2, 2), (2, 2)), send, out)


def test_a_tensor_that_lies_elsewhere_now_is_not_the_same() -> None:
    send, out = torch.zeros(4, 2), torch.zeros(4, 2)
    views = make_views(EQUAL, send, out, 2)
    send.set_(torch.ones(4, 2))
    assert not views.are_of(EQUAL, send, out)
    views = make_views(EQUAL, send, out, 2)
    out.resize_(2, 2)
    assert not views.are_of(EQUAL, send, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("gradients", [False, True])
def test_memory_goes_with_its_tensor(dtype: torch.dtype, gradients: bool) -> None:
    tensors = [torch.zeros(4, 2, dtype=dtype) for _ in range(2)]
    if gradients and dtype.is_floating_point:
        tensors = [tensor.requires_grad_() for tensor in tensors]
    views = make_views(EQUAL, *tensors, 2)
    send, storage = tensors[0], weakref.ref(tensors[1].untyped_storage())
    tensors.clear()
    gc.collect()
    assert storage() is None
    assert views._target is None
    assert not views.are_of(EQUAL, send, torch.zeros(4, 2, dtype=dtype))


def test_what_is_no_plain_memory_is_copied_each_time() -> None:
    wide, target = torch.arange(16.0).view(4, 4), torch.zeros(4, 4)
    send, out = wide[:, ::2], target[:, ::2]
    views = make_views(EQUAL, send, out, 2)
    for factor in (1.0, 10.0):
        wide.mul_(factor)
        views.target(out).copy_(views.source(send))
        views.finish(out)
        assert torch.equal(out, send)
    assert bool((target[:, 1::2] == 0).all())


def test_rows_without_bytes_are_nothing_to_move() -> None:
    assert make_views(EQUAL, torch.zeros(4, 0), torch.zeros(4, 0), 2).nothing
    assert not make_views(EQUAL, torch.zeros(0, 4), torch.zeros(0, 4), 2).nothing
