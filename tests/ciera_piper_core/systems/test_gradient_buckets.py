"""Tests of gradient buckets: sums over microbatches and ranks, in order, whatever the backward pass leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.systems.gradient_buckets import GradientBuckets
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

WORLD = 2
WIDTH = 6


def model() -> torch.nn.Sequential:
    """Four layers, the same weights everywhere."""
    generator = torch.Generator().manual_seed(3)
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    with torch.no_grad():
        for weight in layers.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return layers


def data(rank: int, part: int) -> torch.Tensor:
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(10 * rank + part))


def wanted(ranks: range, parts: int) -> dict[str, torch.Tensor]:
    """Gradients of the sum of all losses."""
    layers = model()
    for rank in ranks:
        for part in range(parts):
            layers(data(rank, part)).square().sum().backward()
    return {name: weight.grad for name, weight in layers.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 200, 1 << 20])
def test_gradients_are_summed_over_microbatches_and_ranks(tmp_path: Path, hooks: bool, bucket_bytes: int) -> None:
    def body(context: Context) -> None:
        layers, group = model(), context.group.data
        # The last layer's weights are this rank's own.
        buckets = GradientBuckets(
            dict(layers.named_parameters()),
            lambda name: None if name.startswith("3.") else group,
            torch.float32,
            bucket_bytes=bucket_bytes,
            hooks=hooks,
        )
        for _ in range(2):
            buckets.begin()
            for part in range(3):
                if part == 2:
                    buckets.last()
                layers(data(context.group.rank, part)).square().sum().backward()
            summed = buckets.finish()
            mine = wanted(range(context.group.rank, context.group.rank + 1), 3)
            everyone = wanted(range(WORLD), 3)
            assert list(summed) == list(everyone)
            for name, gradient in summed.items():
                torch.testing.assert_close(gradient, mine[name] if name.startswith("3.") else everyone[name])
        assert all(weight.grad is None for weight in layers.parameters())

    run_world(WORLD, body, tmp_path)


def test_a_parameter_without_gradient_on_one_rank_counts_as_zero(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        layers, group = model(), context.group.data
        buckets = GradientBuckets(dict(layers.named_parameters()), lambda name: group, torch.float32, bucket_bytes=1)
        # Rank 0 leaves out layer 1: its buckets are sent at the end alone, those after it wait for their turn.
        used = [0, 2, 3] if context.group.rank == 0 else [0, 1, 2, 3]
        buckets.begin()
        buckets.last()
        x = data(0, 0)
        for number in used:
            x = layers[number](x)
        x.sum().backward()
        summed = buckets.finish()
        here = [gradient.clone() for name, gradient in summed.items()]
        assert all(torch.equal(one, other) for one, other in zip(here, everyones(here, 1), strict=True))
        assert summed["1.weight"].abs().max() > 0

    run_world(WORLD, body, tmp_path)


def everyones(tensors: list[torch.Tensor], source: int) -> list[torch.Tensor]:
    """Those of a rank."""
    copies = [tensor.clone() for tensor in tensors]
    for copy in copies:
        dist.broadcast(copy, source)
    return copies


def test_sums_are_of_the_asked_dtype() -> None:
    layers = model()
    buckets = GradientBuckets(dict(layers.named_parameters()), lambda name: None, torch.bfloat16)
    buckets.begin()
    layers(data(0, 0)).sum().backward()
    assert {gradient.dtype for gradient in buckets.finish().values()} == {torch.bfloat16}


@pytest.mark.parametrize("sum_dtype", [torch.float32, None])
def test_many_microbatches_add_up_in_their_own_dtype(tmp_path: Path, sum_dtype: torch.dtype | None) -> None:
    """300 gradients of 1 a rank: in bfloat16 alone they would stop at 256, where 1 is half of a last digit."""

    def body(context: Context) -> set[float]:
        weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        buckets = GradientBuckets(
            {"shared": weight, "own": (own := torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)))},
            lambda name: context.group.data if name == "shared" else None,
            torch.bfloat16,
            sum_dtype=sum_dtype,
        )
        buckets.begin()
        for part in range(300):
            if part == 299:
                buckets.last()
            (weight.sum() + own.sum()).backward()
        summed = buckets.finish()
        assert {gradient.dtype for gradient in summed.values()} == {sum_dtype or torch.bfloat16}
        assert set(summed["own"].tolist()) == {256.0 if sum_dtype is None else 300.0}
        return set(summed["shared"].tolist())

    assert run_world(WORLD, body, tmp_path) == [{WORLD * (256.0 if sum_dtype is None else 300.0)}] * WORLD


def test_a_gradient_after_the_last_is_an_error() -> None:
    layers = model()
    buckets = GradientBuckets(dict(layers.named_parameters()), lambda name: None, torch.float32, bucket_bytes=1)
    buckets.begin()
    buckets.last()
    layers(data(0, 0)).sum().backward()
    with pytest.raises(RuntimeError, match="came after its sum was under way"):
        layers(data(0, 1)).sum().backward()


def test_closed_buckets_leave_gradients_alone() -> None:
    layers = model()
    buckets = GradientBuckets(dict(layers.named_parameters()), lambda name: None, torch.float32)
    buckets.close()
    layers(data(0, 0)).sum().backward()
    assert layers[0].weight.grad is not None


def test_another_shape_needs_other_buckets() -> None:
    layers = model()
    buckets = GradientBuckets(dict(layers.named_parameters()), lambda name: None, torch.float32)
    assert buckets.fit()
    layers[0].weight.data = torch.zeros(WIDTH + 1, WIDTH)
    assert not buckets.fit()


def test_frozen_parameters_have_no_gradient() -> None:
    layers = model()
    layers[1].requires_grad_(False)
    buckets = GradientBuckets(dict(layers.named_parameters()), lambda name: None, torch.float32)
    buckets.begin()
    layers(data(0, 0)).sum().backward()
    assert not [name for name in buckets.finish() if name.startswith("1.")]
