"""Operations between ranks that share a matrix: what they give, and that backward is the operation back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.models.tensor_collectives import (
    TensorRanks,
    all_rows,
    all_rows_for_parts,
    own_rows,
    own_rows_summed,
    spread,
    summed,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

COUNTS = {"even": (2, 2, 2), "uneven": (3, 0, 1), "nothing": (0, 0, 0)}


def ranks_of(context: Context) -> TensorRanks:
    assert context.group.data is not None
    return TensorRanks.of(context.group.data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", COUNTS)
def test_rows_are_gathered_divided_and_summed(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    counts = COUNTS[kind]

    def body(context: Context) -> None:
        ranks = ranks_of(context)
        rank, rows = ranks.rank, sum(counts)
        first, last = sum(counts[:rank]), sum(counts[: rank + 1])
        # Small whole numbers, which every dtype adds exactly.
        whole = torch.arange(rows * 2, dtype=dtype).view(rows, 2)
        assert ranks.counts(counts[rank], torch.device("cpu")) == counts

        part = whole[first:last].clone().requires_grad_()
        gathered = all_rows(part, ranks, counts)
        assert torch.equal(gathered, whole)
        gathered.backward(whole * 3)
        assert torch.equal(part.grad, whole[first:last] * 3)

        part.grad = None
        all_rows_for_parts(part, ranks, counts).backward(whole * (rank + 1))
        assert torch.equal(part.grad, whole[first:last] * 6)

        copied = whole.clone().requires_grad_()
        mine = own_rows(copied, ranks, counts)
        assert torch.equal(mine, whole[first:last])
        mine.backward(whole[first:last] * 2)
        assert torch.equal(copied.grad, whole * 2)

        partial = (whole * (rank + 1)).requires_grad_()
        mine = own_rows_summed(partial, ranks, counts)
        assert torch.equal(mine, whole[first:last] * 6)
        mine.backward(whole[first:last] * 2)
        assert torch.equal(partial.grad, whole * 2)

    run_world(3, body, tmp_path)


def test_sums_go_one_way_and_gradients_the_other(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks = ranks_of(context)
        x = torch.ones(2, requires_grad=True)
        scale = torch.tensor(float(ranks.rank + 1))
        read = spread(x, ranks) * scale
        total = summed(read, ranks)
        assert total.tolist() == [6, 6]
        total.sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert x.grad.tolist() == [6, 6]

    run_world(3, body, tmp_path)


def test_rows_that_do_not_fit_the_counts_are_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks = ranks_of(context)
        for operation in (own_rows, own_rows_summed):
            with pytest.raises(ValueError, match=r"3 rows cannot be divided into \(1, 1\)"):
                operation(torch.zeros(3, 1), ranks, (1, 1))

    run_world(2, body, tmp_path)


def test_shares_are_as_even_as_can_be() -> None:
    ranks = TensorRanks(None, 1, 3)  # type: ignore[arg-type]
    assert ranks.shares(7) == (3, 2, 2)
    assert ranks.shares(2) == (1, 1, 0)
