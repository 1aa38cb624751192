"""A stand-in for the CUDA device, for machines without one: what is asked of it, in order."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def cuda_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of ``torch.cuda`` from now on; its events take the host's time."""
    import torch

    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ns = 0

        def record(self) -> None:
            calls.append("record")
            self.at_ns = time.perf_counter_ns()

        def synchronize(self) -> None:
            calls.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return (end.at_ns - self.at_ns) / 1e6

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    return calls
