"""The flat all-to-all in real gloo worlds: the order of rows, and what is refused before any is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.alltoall.flat import FlatAllToAll
from tests.ciera_piper_core.alltoall.exchanged_rows import matrices, received, same_bits, sent
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


@pytest.mark.parametrize("world", [2, 3, 5])
def test_rows_arrive_in_order_of_the_sender(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group, rank = context.group.data, context.group.rank
        assert group is not None
        flat = FlatAllToAll(group, check_splits=True)
        for matrix in matrices(world).values():
            expected = received(rank, matrix, (3,), torch.int32)
            out = torch.full_like(expected, -1)
            send = sent(rank, matrix, (3,), torch.int32)
            flat.exchange(send, matrix[rank].tolist(), matrix[:, rank].tolist(), out)
            assert same_bits(out, expected)

    run_world(world, body, tmp_path)


def test_equal_shares_need_no_splits(tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        assert context.group.data is not None
        out = torch.zeros(3, dtype=torch.int16)
        send = torch.arange(3, dtype=torch.int16) + 10 * context.group.rank
        FlatAllToAll(context.group.data).exchange(send, None, None, out)
        numbers: list[int] = out.tolist()
        return numbers

    assert run_world(3, body, tmp_path) == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        flat = FlatAllToAll(context.group.data)
        two, three = torch.zeros(2, 4), torch.zeros(3, 4)
        for send, splits, out, message in (
            (torch.zeros(()), (None, None), two, "a tensor without dimensions"),
            (two, (None, None), torch.zeros(2, 5), r"rows of \(4,\) torch.float32 on cpu cannot be received as \(5,\)"),
            (two, (None, None), two.double(), "torch.float64"),
            (three, (None, None), torch.zeros(3, 4), "3 rows to send are no equal shares for 2 ranks"),
            (two, (None, None), torch.zeros(4, 4), "equal shares of 2 rows cannot be received as 4"),
            (three, ([1, 1], [1, 1]), torch.zeros(2, 4), "send splits add up to 2 rows, but the tensor has 3"),
            (two, ([1, 1], [1, 1]), three, "receive splits add up to 2 rows, but the tensor has 3"),
            (two, (None, None), two, "cannot be done in place"),
        ):
            with pytest.raises(ValueError, match=message):
                flat.exchange(send, *splits, out)
            with pytest.raises(ValueError, match=message):
                flat.start(send, *splits, out)

    run_world(2, body, tmp_path)
