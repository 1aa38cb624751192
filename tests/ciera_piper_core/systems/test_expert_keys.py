"""Tests of checkpoint keys of experts."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.systems.expert_keys import joined, split


def test_a_stack_is_one_key_an_expert_and_back_in_order_of_numbers() -> None:
    whole = torch.arange(12.0).view(4, 3)
    rows = split("up", whole[[2, 0]], (2, 0)) | split("up", whole[[3, 1]], (3, 1))
    assert set(rows) == {"up.0", "up.1", "up.2", "up.3"}
    assert torch.equal(joined("up", rows), whole)


def test_parts_are_views() -> None:
    stack = torch.zeros(2, 3)
    split("up", stack, (5, 7))["up.7"].fill_(1)
    assert stack[1].tolist() == [1, 1, 1]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="up: no rank has expert 1"):
        joined("up", {"up.0": torch.zeros(1), "up.2": torch.zeros(1)})
    with pytest.raises(ValueError, match="up has 2 rows for 1 experts"):
        split("up", torch.zeros(2, 3), (0,))
