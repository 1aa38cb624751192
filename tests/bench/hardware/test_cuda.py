"""How many devices torch can use: what torch itself says, whether or not this process imports it."""

from __future__ import annotations

from bench.hardware import cuda_device_count


def test_it_is_what_torch_says() -> None:
    import torch

    assert cuda_device_count() == torch.cuda.device_count()
