"""Tests of static memory: against torch's memory tracker and real optimizers at full size; ZeRO; refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from ciera_piper_core.models.transformer import TransformerLayer
from ciera_piper_core.planner.static_memory import (
    OPTIMIZERS,
    PRECISIONS,
    StaticBytes,
    layer_static_bytes,
    moment_elements,
    static_bytes_per_parameter,
    weights_static_bytes,
)
from ciera_piper_core.planner.weights import Weight
from tests.ciera_piper_core.fake_layers import LAYERS, total

MAKE = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
    "adafactor": lambda weights: torch.optim.Adafactor(weights, lr=1e-3),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-3),
    "sgd_momentum": lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
}


def predicted(name: str, **options: object) -> StaticBytes:
    layer, hidden = LAYERS[name]
    together = StaticBytes(0.0, 0.0, 0.0, 0.0)
    for part in layer_static_bytes(layer, hidden, **options).values():  # type: ignore[arg-type]
        together = together + part
    return together


def measured(name: str, optimizer: str, precision: str) -> int:
    """Bytes that stay after a step: of a mixed precision, the optimizer works on a float32 master copy."""
    layer, hidden = LAYERS[name]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
    mixed = dtype != torch.float32
    with FakeTensorMode():
        tracker = MemTracker()
        with tracker:
            module = TransformerLayer(layer, hidden, dtype=dtype, checkpointing="full")
            weights = list(module.parameters())
            owned = [weight.detach().float() for weight in weights] if mixed else weights
            stepped = MAKE[optimizer](owned)
            for weight, own in zip(weights, owned, strict=True):
                weight.grad = torch.zeros_like(weight)
                if mixed:
                    own.grad = weight.grad.float()
            stepped.step()
            if mixed:
                stepped.zero_grad()
            static = total(tracker)
            del stepped
    return static


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-235b", "olmoe"])
def test_static_bytes_are_what_the_tracker_counts(
    name: str, precision: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Adafactor reads norms, which fake tensors do not have; any number does for its memory.
    monkeypatch.setattr(FakeTensor, "item", lambda tensor: 1.0)
    expected = predicted(name, optimizer=optimizer, precision=precision).total
    assert expected == pytest.approx(measured(name, optimizer, precision), rel=1e-4)


def test_the_default_is_16_bytes_a_parameter() -> None:
    assert static_bytes_per_parameter() == StaticBytes(2, 2, 4, 8)
    assert static_bytes_per_parameter().total == 16
    assert static_bytes_per_parameter(precision="fp32").total == 16
    assert static_bytes_per_parameter("sgd").total == 8
    assert static_bytes_per_parameter("sgd_momentum").total == 12


@pytest.mark.parametrize(("stage", "total_bytes"), [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_each_zero_stage_divides_more(stage: int, total_bytes: float) -> None:
    assert static_bytes_per_parameter(zero_stage=stage, shards=8).total == total_bytes
    several = static_bytes_per_parameter(zero_stage=stage, shards=np.array([1, 8]))
    np.testing.assert_array_equal(several.total, [16, total_bytes])


def test_adafactor_keeps_rows_and_columns() -> None:
    weights = [Weight("dense", 3, 100, 50), Weight("norms", 1, 1, 7)]
    assert moment_elements("adafactor", weights) == 3 * 150 + 7
    assert weights_static_bytes(weights, "adafactor").moments == 4 * (3 * 150 + 7)
    assert moment_elements("adam", weights) == 2 * (3 * 5000 + 7)
    assert weights_static_bytes([], "adam").total == 0


def test_expert_shards_are_apart_from_those_of_the_rest() -> None:
    whole = layer_static_bytes(*LAYERS["mixtral-8x7b"], zero_stage=1)
    spread = layer_static_bytes(
        *LAYERS["mixtral-8x7b"], zero_stage=1, shards=16, expert_parallel=np.array([2, 8]), expert_shards=2
    )
    assert spread["attention"].master == whole["attention"].master / 16
    np.testing.assert_array_equal(
        spread["routed_experts"].master, whole["routed_experts"].master / 2 / np.array([2, 8])
    )
    np.testing.assert_array_equal(spread["routed_experts"].weights, whole["routed_experts"].weights / np.array([2, 8]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; known: adam, adafactor, sgd, sgd_momentum"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"zero_stage": 4}, "there is no ZeRO stage 4"),
        ({"shards": 0}, "divided over 0 shards"),
        ({"optimizer": "adafactor"}, "depend on the weights' shapes: give moments_per_parameter"),
    ],
)
def test_what_is_unknown_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        static_bytes_per_parameter(**options)  # type: ignore[arg-type]
