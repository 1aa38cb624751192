"""Moving experts: tables, and stacks of any dtype, bit for bit and between any two placements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.moe.expert_table import ExpertTable, contiguous_table
from ciera_piper_core.moe.migration.mover import bytes_of_one, move_stacks, table_with
from tests.ciera_piper_core.moe.expert_worlds import by_value, group_of, loaded
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

WORLD, EXPERTS = 4, 9

TABLES = (
    contiguous_table(EXPERTS, WORLD, uneven=True),
    # Two experts change places.
    ExpertTable(((0, 8, 2), (3, 4), (5, 6), (7, 1))),
    # Only slots change.
    ExpertTable(((2, 0, 1), (4, 3), (5, 6), (7, 8))),
    # Numbers of experts change on all ranks.
    ExpertTable(((7,), (0, 1, 2, 3), (8,), (4, 5, 6))),
    # Everything moves.
    ExpertTable(((8, 7, 6), (5, 4), (3, 2), (1, 0))),
)


def stacks_of(experts: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """What belongs to these experts, recognisable; with a dtype of each width, and NaN and negative zero."""

    def stack(seed: int, *shape: int) -> torch.Tensor:
        return torch.stack(
            [torch.randn(shape, generator=torch.Generator().manual_seed(100 * e + seed)) for e in experts]
        )

    up = stack(1, 3, 5)
    up[:, 0, 0], up[:, 0, 1] = float("nan"), -0.0
    return {"up": up, "working": stack(2, 7).to(torch.bfloat16), "row": stack(3, 3).double(), "flags": stack(4, 3) > 0}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    )


class TestTableWith:
    def test_who_stays_keeps_its_slot(self) -> None:
        table = table_with(ExpertTable(((4, 1, 0), (3, 5, 2))), (0, 1, 1, 1, 0, 0))
        assert table == ExpertTable(((4, 5, 0), (3, 1, 2)))

    def test_fewer_experts_close_up(self) -> None:
        table = table_with(ExpertTable(((0, 1, 2), (3, 4))), (1, 0, 0, 1, 1))
        assert table == ExpertTable(((2, 1), (3, 4, 0)))

    def test_same_ranks_same_table(self) -> None:
        table = ExpertTable(((3, 0), (2, 1)))
        assert table_with(table, (0, 1, 1, 0)) == table

    def test_refuses_other_numbers(self) -> None:
        with pytest.raises(ValueError, match="3 experts for a table of 4"):
            table_with(contiguous_table(4, 2), (0, 1, 1))

    def test_refuses_an_empty_rank(self) -> None:
        with pytest.raises(ValueError, match="hold none"):
            table_with(contiguous_table(4, 2), (0, 0, 0, 0))


class TestMoveStacks:
    @pytest.mark.parametrize("algorithm", ["flat", "halo_v1"])
    def test_all_to_all_placements_bit_for_bit(self, tmp_path: Path, algorithm: str) -> None:
        def body(context: Context) -> bytes:
            group, rank = group_of(context), context.group.rank
            exchange = make_all_to_all(algorithm, group, even_placement(WORLD, 2))
            results = []
            for old in TABLES:
                for new in TABLES:
                    moved = move_stacks(stacks_of(old.held[rank]), old, new, exchange, rank)
                    results.append({name: stack.clone() for name, stack in moved.items()})
            return by_value(results)

        for rank, results in enumerate(loaded(run_world(WORLD, body, tmp_path))):
            for place, moved in enumerate(results):
                wanted = stacks_of(TABLES[place % len(TABLES)].held[rank])
                assert moved.keys() == wanted.keys()
                assert all(same_bits(moved[name], wanted[name]) for name in wanted)

    def test_as_many_experts_stay_in_their_memory(self, tmp_path: Path) -> None:
        def body(context: Context) -> bool:
            rank = context.group.rank
            stacks = stacks_of(TABLES[0].held[rank])
            moved = move_stacks(stacks, TABLES[0], TABLES[1], make_all_to_all("flat", group_of(context)), rank)
            return all(moved[name] is stacks[name] for name in stacks)

        assert run_world(WORLD, body, tmp_path) == [True] * WORLD

    def test_bytes(self) -> None:
        assert bytes_of_one(stacks_of((0, 1))) == 15 * 4 + 7 * 2 + 3 * 8 + 3
