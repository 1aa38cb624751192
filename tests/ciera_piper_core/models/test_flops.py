"""Tests of FLOP counts: against torch's counter over the transformer at full size, and between conventions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import Architecture, Attention, Layer
from ciera_piper_core.models.flops import CONVENTIONS, layer_flops, model_flops, visible_keys
from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.models.transformer import Transformer, TransformerLayer
from tests.ciera_piper_core.fake_layers import LAYERS

BATCH, SEQUENCE = 1, 4096

# Torch's counter has its formulas for the CUDA kernels only; the CPU's has the same arguments.
KERNELS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *args, **options: sdpa_flop_count(
        q, k, v
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, q, k, v, *args, **options: sdpa_backward_flop_count(gradient, q, k, v)
    ),
}


def counted(layer: Layer, hidden: int, *, flash: bool = False) -> tuple[float, float]:
    """Forward and backward FLOPs a token, from torch's counter; tokens go to all experts evenly."""
    experts = layer.experts
    counts = None
    if experts is not None:
        each = BATCH * SEQUENCE * experts.top_k // experts.experts
        counts = [each] * experts.experts
    with FakeTensorMode():
        module = TransformerLayer(layer, hidden, flash=flash)
        x = torch.empty(BATCH, SEQUENCE, hidden, dtype=torch.bfloat16, requires_grad=True)
        with FlopCounterMode(display=False, custom_mapping=KERNELS) as forward:
            output = module(x, counts)
        with FlopCounterMode(display=False, custom_mapping=KERNELS) as backward:
            output.backward(torch.ones_like(output))
    tokens = BATCH * SEQUENCE
    return forward.get_total_flops() / tokens, backward.get_total_flops() / tokens


@pytest.mark.parametrize("name", LAYERS)
def test_full_counts_are_those_of_torchs_counter(name: str) -> None:
    layer, hidden = LAYERS[name]
    forward, backward = counted(layer, hidden)
    predicted = sum(layer_flops(layer, hidden, SEQUENCE, "full").values())
    assert predicted == pytest.approx(forward, rel=1e-6)
    assert 2 * predicted == pytest.approx(backward, rel=1e-6)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "olmoe"])
def test_a_fused_kernel_adds_the_scores_once_more_to_the_backward_pass(name: str) -> None:
    layer, hidden = LAYERS[name]
    assert isinstance(layer.mixer, Attention)
    forward, backward = counted(layer, hidden, flash=True)
    predicted = sum(layer_flops(layer, hidden, SEQUENCE, "full").values())
    again = 2 * layer.mixer.heads * layer.mixer.qk_dim * SEQUENCE
    assert predicted == pytest.approx(forward, rel=1e-6)
    assert 2 * predicted + again == pytest.approx(backward, rel=1e-6)


def test_a_whole_model_is_its_layers_and_the_output_projection() -> None:
    layer, hidden = LAYERS["two-matrix-dense"]
    architecture = Architecture("two layers", hidden, 32000, (layer, layer), output_vocab=30000)
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        logits = Transformer(architecture, flash=False)(torch.zeros(1, 512, dtype=torch.int64))
        logits.backward(torch.ones_like(logits))
    flops = model_flops(architecture, 512, "full")
    assert flops.total * 512 == pytest.approx(counter.get_total_flops(), rel=1e-6)
    assert flops.output == 2 * hidden * 30000
    assert flops.total == 3 * (sum(flops.components.values()) + flops.output)


@pytest.mark.parametrize("name", catalogue.names())
def test_conventions_differ_in_the_scores_alone(name: str) -> None:
    architecture = catalogue.load(name)
    by = {convention: model_flops(architecture, 4096, convention) for convention in CONVENTIONS}
    scores = {convention: flops.components["attention_scores"] for convention, flops in by.items()}
    assert scores["6n"] == 0
    assert 0 < scores["causal"] <= scores["full"]
    for convention, flops in by.items():
        assert flops.forward == pytest.approx(by["6n"].forward + scores[convention], rel=1e-12)
    masked = [layer for layer in architecture.layers if isinstance(layer.mixer, Attention) and layer.mixer.causal]
    if len(masked) == len(architecture.layers) and not architecture.encoder and not masked[0].cross:
        assert scores["causal"] == pytest.approx(scores["full"] * (4096 + 1) / (2 * 4096), rel=0.3)


@pytest.mark.parametrize("name", catalogue.names())
def test_6n_is_six_times_the_active_weights_that_multiply(name: str) -> None:
    architecture = catalogue.load(name)
    parameters = model_parameters(architecture, mtp=False)
    # The look-up multiplies nothing; a tied output projection does. Norms, biases and positions are the rest.
    active = parameters.active - parameters.embedding
    if architecture.tied_embeddings:
        active += parameters.embedding
    total = model_flops(architecture, 4096, "6n").total
    assert total == pytest.approx(6 * active, rel=2e-3)
    assert total <= 6 * active


def test_mixtral_by_hand() -> None:
    layer, hidden = LAYERS["mixtral-8x7b"]
    flops = layer_flops(layer, hidden, 4096, "causal")
    assert flops["attention_projections"] == 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    assert flops["attention_scores"] == 2 * 32 * 256 * 4097 / 2
    assert flops["routed_experts"] == 2 * 2 * 3 * 4096 * 14336
    assert flops["router"] == 2 * 8 * 4096


def test_keys_that_a_query_sees() -> None:
    attention = Attention(8, 8, 64, 64)
    assert visible_keys(attention, 5, masked=True) == 3
    assert visible_keys(attention, 5, masked=False) == 5
    assert visible_keys(replace(attention, causal=False), 5, masked=True) == 5
    windowed = replace(attention, window=3)
    assert visible_keys(windowed, 5, masked=True) == (1 + 2 + 3 + 3 + 3) / 5
    assert visible_keys(windowed, 2, masked=True) == 1.5


def test_layers_that_predict_further_tokens_count_when_asked() -> None:
    layer, hidden = LAYERS["olmoe"]
    architecture = Architecture("with one", hidden, 1000, (layer,), mtp=(layer,))
    without, with_it = (model_flops(architecture, 64, "6n", mtp=mtp).forward for mtp in (False, True))
    assert with_it == 2 * without + 2 * 2 * hidden * hidden


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown FLOP convention '8n'; known: 6n, causal, full"):
        layer_flops(*LAYERS["olmoe"], 64, "8n")  # type: ignore[arg-type]
