"""The checkpoint of our own: training changes it, and gives the same again, but for another seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.transformer import Transformer
from suites import trained_weights as module
from suites.trained_weights import architecture, trained_weights

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def initial(seed: int) -> torch.Tensor:
    model = Transformer(architecture(), dtype=torch.float32)
    initialise(model, seed)
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_steps_change_the_weights_and_give_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 2)
    steps: list[None] = []
    trained = trained_weights(1, lambda: steps.append(None))
    assert len(steps) == 2
    assert trained.dtype is torch.float32
    assert 4e6 < trained.numel() < 5e6
    assert bool(trained.isfinite().all())
    changed = (trained.view(torch.int32) != initial(1).view(torch.int32)).float().mean()
    assert 0.5 < changed <= 1, "experts without tokens, and bytes that did not occur, may stay"
    assert torch.equal(trained.view(torch.int32), trained_weights(1).view(torch.int32))


def test_another_seed_is_another_model() -> None:
    assert not torch.equal(initial(1).view(torch.int32), initial(2).view(torch.int32))
