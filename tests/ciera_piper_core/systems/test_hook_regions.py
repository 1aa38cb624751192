"""Tests of hooks that are marked as regions."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.ranges import recording
from ciera_piper_core.systems.hook_regions import AFTER, BEFORE, mark_hooks


@pytest.mark.parametrize("kept", [BEFORE, AFTER])
def test_only_the_librarys_hooks_become_regions_and_can_be_removed(kept: str) -> None:
    called: list[str] = []

    def theirs(*_: object) -> None:
        called.append("theirs")

    def ours(*_: object) -> None:
        called.append("ours")

    module = torch.nn.Linear(2, 2)
    register = module.register_forward_pre_hook if kept == BEFORE else module.register_forward_hook
    handles = [register(theirs), register(ours)]
    assert mark_hooks(module, kept, "parameter_gather", lambda hook: hook is theirs) == 1
    with recording() as spans:
        module(torch.ones(1, 2))
    assert called == ["theirs", "ours"]
    assert [span.name for span in spans] == ["parameter_gather"]
    for handle in handles:
        handle.remove()
    module(torch.ones(1, 2))
    assert called == ["theirs", "ours"]
