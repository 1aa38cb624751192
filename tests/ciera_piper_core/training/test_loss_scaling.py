"""Tests of loss scaling: it falls at a gradient that does not fit, grows after many that do, and is kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ciera_piper_core.training.loss_scaling import LossScaler

if TYPE_CHECKING:
    import pytest


def test_only_fp16_is_scaled() -> None:
    for precision in ("fp32", "bf16"):
        scaler = LossScaler(precision)  # type: ignore[arg-type]
        assert scaler.after_step(1.0)
        assert not scaler.after_step(math.nan)
        assert scaler.scale == 1
    assert LossScaler("fp16").scale > 1


def test_it_halves_and_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScaler, "GROWTH_INTERVAL", 3)
    scaler = LossScaler("fp16")
    first = scaler.scale
    assert not scaler.after_step(math.inf)
    assert scaler.scale == first / 2
    assert [scaler.after_step(1.0) for _ in range(2)] == [True, True]
    assert not scaler.after_step(math.nan)
    assert scaler.scale == first / 4, "good steps are counted anew"
    for _ in range(3):
        scaler.after_step(1.0)
    assert scaler.scale == first / 2


def test_it_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScaler, "GROWTH_INTERVAL", 1)
    scaler = LossScaler("fp16")
    for _ in range(40):
        scaler.after_step(math.inf)
    assert scaler.scale == LossScaler.LEAST
    for _ in range(80):
        scaler.after_step(1.0)
    assert scaler.scale == LossScaler.MOST


def test_a_resumed_run_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScaler, "GROWTH_INTERVAL", 3)
    scaler, resumed = LossScaler("fp16"), LossScaler("fp16")
    for norm in (math.inf, 1.0, 1.0):
        scaler.after_step(norm)
    resumed.load_state_dict(scaler.state_dict())
    assert resumed.scale == scaler.scale
    scaler.after_step(1.0)
    resumed.after_step(1.0)
    assert resumed.scale == scaler.scale == LossScaler.INITIAL
