"""Tests of the backward pass's peak: against torch's memory tracker at full size; and of a model's two ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from ciera_piper_core.models.architecture import Architecture
from ciera_piper_core.models.loss import ROWS, token_loss
from ciera_piper_core.models.transformer import Transformer
from ciera_piper_core.planner.activations import CHECKPOINTING, Checkpointing, activation_bytes_per_token
from ciera_piper_core.planner.working_memory import (
    LOSS_ROWS,
    logits_bytes_per_token,
    logits_working_bytes,
    working_bytes,
    working_bytes_per_token,
)
from tests.ciera_piper_core.fake_layers import CPU, LAYERS, measure, total


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "scores"])
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "deepseek-v3-dense"])
def test_the_peak_is_what_the_tracker_sees(name: str, checkpointing: Checkpointing, flash: bool) -> None:
    layer, hidden = LAYERS[name]
    measured = measure(name, 1, 2048, flash=flash, checkpointing=checkpointing).working
    predicted = working_bytes(layer, hidden, 2048, 2048, checkpointing=checkpointing, flash=flash)
    assert predicted == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("tokens", [64, 16384])
@pytest.mark.parametrize("name", ["deepseek-v3", "mixtral-8x7b", "olmoe"])
def test_few_and_many_tokens_have_their_peak_elsewhere(name: str, tokens: int) -> None:
    # At the weights' gradients, or at the activations'.
    layer, hidden = LAYERS[name]
    predicted = working_bytes(layer, hidden, tokens, tokens)
    assert predicted == pytest.approx(measure(name, 1, tokens).working, rel=0.01)


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_narrow_values_cost_torchs_cpu_kernel_padding_and_nothing_else(checkpointing: Checkpointing) -> None:
    layer, hidden = LAYERS["deepseek-v3-dense"]
    measured = measure("deepseek-v3-dense", 1, 4096, checkpointing=checkpointing).working
    # The output, its gradient and the values, widened; and the values' gradient as wide as them.
    padding = 2 * 128 * (3 * 192 + 64) * 4096
    predicted = float(working_bytes(layer, hidden, 4096, 4096, checkpointing=checkpointing))
    assert predicted <= measured + 100 <= predicted + padding


@pytest.mark.parametrize("name", LAYERS)
def test_one_token_more_costs_the_peak_a_token(name: str) -> None:
    layer, hidden = LAYERS[name]
    # So many tokens that no weight's gradient matters.
    many = 10.0**9
    assert working_bytes(layer, hidden, 4096, many) / many == pytest.approx(
        float(working_bytes_per_token(layer, hidden, 4096)), rel=0.02
    )


def test_arrays_give_arrays() -> None:
    layer, hidden = LAYERS["deepseek-v3"]
    ranks, tokens, load = np.array([1, 8, 64]), np.array([512, 4096, 8192]), np.array([1.0, 1.5, 3.0])
    together = working_bytes(layer, hidden, 4096, tokens, expert_parallel=ranks, load_factor=load)
    alone = [
        working_bytes(layer, hidden, 4096, t, expert_parallel=r, load_factor=f)
        for r, t, f in zip(ranks, tokens, load, strict=True)
    ]
    np.testing.assert_array_equal(together, np.array(alone))


def test_more_expert_parallel_ranks_have_smaller_weight_gradients_but_exchange() -> None:
    layer, hidden = LAYERS["deepseek-v3"]
    one, two, many = (working_bytes(layer, hidden, 4096, 4096, expert_parallel=ranks) for ranks in (1, 2, 64))
    assert one > two > many
    exchanged = working_bytes_per_token(layer, hidden, 4096, expert_parallel=64)
    assert exchanged == 2 * hidden * (1 + 2 * 8)
    assert working_bytes_per_token(layer, hidden, 4096) < exchanged


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_keeps_its_layers_and_its_ends(tied: bool) -> None:
    layer, hidden = LAYERS["olmoe"]
    architecture = Architecture("two layers", hidden, 50304, (layer, layer), tied_embeddings=tied)
    batch, sequence = 2, 1024
    with FakeTensorMode():
        model = Transformer(architecture)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        tokens = torch.zeros(batch, sequence, dtype=torch.int64)
        targets = torch.zeros(batch, sequence, dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            before = total(tracker)
            loss = token_loss(model(tokens), targets)
            kept = total(tracker) - before
            tracker._peak_mem.clear()
            loss.backward()  # type: ignore[no-untyped-call]
            peak = tracker.get_tracker_snapshot("peak")[CPU]["Total"] - before - kept
    layers = 2 * sum(activation_bytes_per_token(layer, hidden, sequence).values())
    ends = logits_bytes_per_token(architecture)
    assert (layers + sum(ends.values())) * batch * sequence == pytest.approx(kept, rel=1e-3)
    if not tied:
        assert logits_working_bytes(architecture, batch * sequence) == pytest.approx(peak, rel=0.01)


def test_the_loss_widens_as_many_rows_as_counted() -> None:
    assert ROWS == LOSS_ROWS
