"""Kinds of data: what each is made of, the same from the same seed, and how entropy is counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from ciera_piper_core.exponents.layout import LAYOUTS, FloatLayout
from suites import weights
from suites.codec_oracle import symbols_of
from suites.model_file import FILE_VARIABLE
from suites.weights import CHANGED, entropy_bytes, make_deltas, make_weights

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 100_000
NAMES = [str(layout.dtype) for layout in LAYOUTS]
KINDS = ("gaussian", "uniform", "constant", "skewed")


def symbols(kind: str, layout: FloatLayout, count: int = COUNT) -> torch.Tensor:
    values = make_weights(kind, count, layout.dtype, 3, {})
    assert (values.dtype, values.shape) == (layout.dtype, (count,))
    return torch.from_numpy(symbols_of(values.view(layout.bits_dtype), layout))


def entropy_bits(found: torch.Tensor) -> float:
    return entropy_bytes(found) * 8 / len(found)


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_what_each_kind_is_like(layout: FloatLayout) -> None:
    assert entropy_bits(symbols("gaussian", layout)) == pytest.approx(2.55, abs=0.02)
    assert entropy_bits(symbols("uniform", layout)) == pytest.approx(layout.exponent_bits, abs=0.01)
    assert entropy_bits(symbols("constant", layout)) == 0
    rare = symbols("skewed", layout, 2**21)
    common = int(rare.mode().values)
    assert rare[0] != common
    assert 1 <= int((rare != common).sum()) < 16


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_values(kind: str) -> None:
    first, again, other = (make_weights(kind, 1000, torch.bfloat16, seed, {}).view(torch.int16) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert kind == "constant" or not torch.equal(first, other)


def test_uniform_bits_hold_nans_of_both_signs_and_subnormals() -> None:
    values = make_weights("uniform", COUNT, torch.bfloat16, 0, {})
    nans = values[values.isnan()].view(torch.int16)
    assert bool((nans < 0).any())
    assert bool((nans > 0).any())
    assert bool(((values.view(torch.int16) & 0x7F80) == 0).any())


def test_deltas_are_steps_of_one_either_way() -> None:
    for bits in (8, 5):
        deltas = make_deltas(COUNT, bits, 0)
        assert set(deltas.tolist()) == {0, 1, 2**bits - 1}
        assert int((deltas != 0).sum()) == COUNT * CHANGED
        assert entropy_bits(deltas) == pytest.approx(0.0504, abs=1e-3)


def test_a_models_weights_repeat_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.safetensors"
    save_file({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]], dtype=torch.bfloat16)}, path)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    scratch: dict[str, Any] = {}
    alive: list[None] = []
    values = make_weights("real", 7, torch.float16, 0, scratch, lambda: alive.append(None))
    assert values.dtype is torch.float16
    assert values.tolist() in ([1, 2, 3, 1, 2, 3, 1], [3, 1, 2, 3, 1, 2, 3])
    assert len(alive) == 2
    path.unlink()
    assert make_weights("real", 2, torch.float16, 1, scratch).tolist() == values[:2].tolist()


def test_trained_weights_are_kept_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def train(seed: int, alive: object) -> torch.Tensor:
        made.append(seed)
        return torch.full((2,), float(seed))

    monkeypatch.setattr(weights, "_trained_weights", train)
    scratch: dict[str, Any] = {}
    values = [make_weights("trained", 3, torch.float32, seed, scratch).tolist() for seed in (4, 4, 5)]
    assert values == [[4] * 3, [4] * 3, [5] * 3]
    assert made == [4, 5]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of weights 'odd'"):
        make_weights("odd", 1, torch.float32, 0, {})


def test_entropy_of_known_distributions() -> None:
    assert entropy_bytes(torch.tensor([9], dtype=torch.uint8)) == 0
    assert entropy_bytes(torch.arange(256, dtype=torch.uint8).repeat(3)) == pytest.approx(768)
    quarter = torch.tensor([0, 0, 0, 255], dtype=torch.uint8).repeat(2**21)
    expected = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)) * len(quarter) / 8
    assert entropy_bytes(quarter) == pytest.approx(expected)
