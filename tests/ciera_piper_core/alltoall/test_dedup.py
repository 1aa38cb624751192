"""The deduplicating dispatch against its references in real gloo worlds: rows, sums, gradients and bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.communicators import state_of
from ciera_piper_core.alltoall.dedup import DedupDispatch
from ciera_piper_core.alltoall.dedup_reference import arrivals, combined_in_steps, combined_plainly
from ciera_piper_core.alltoall.dispatch import DROPPED, Dispatched, Dispatcher, check_choices
from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic, expected_share
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.alltoall.placement import Placement, even_placement
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

WIDTH = 6

PLACEMENTS = {
    "4 nodes of 2": even_placement(8, 2),
    "2 nodes of 3": even_placement(6, 3),
    "1 node": even_placement(3, 3),
    "1 rank a node": even_placement(5, 1),
    "cyclic": Placement(((0, 2, 4), (1, 3, 5))),
    "uneven": Placement(((0, 1, 2), (3,), (6, 5, 4))),
}


def group_of(context: Context) -> dist.ProcessGroup:
    """The group of all ranks, which a world of several has."""
    assert context.group.data is not None
    return context.group.data


def by_value(results: Any) -> bytes:
    """Tensors as bytes: as themselves they would be shared memory of a rank that may be gone."""
    stream = io.BytesIO()
    torch.save(results, stream)
    return stream.getvalue()


def loaded(results: list[bytes]) -> list[Any]:
    return [torch.load(io.BytesIO(one)) for one in results]


def tokens_of(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Another number on each rank; rank 1 has none."""
    count = 0 if rank == 1 else 7 + 3 * rank
    values = torch.randint(-8, 8, (count, WIDTH), generator=torch.Generator().manual_seed(rank))
    return values.to(dtype)


def choices_of(rank: int, world: int, top_k: int = 4) -> torch.Tensor:
    """Ranks drawn with repetition, a tenth of the choices dropped; one rank in two worlds of three gets nothing."""
    generator = torch.Generator().manual_seed(100 + rank)
    count = len(tokens_of(rank, torch.float32))
    ranks = torch.randint(0, max(1, world - (world > 3)), (count, top_k), generator=generator)
    ranks[torch.rand(count, top_k, generator=generator) < 0.1] = DROPPED
    return ranks


def weights_of(rank: int, top_k: int = 4, whole: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(200 + rank)
    count = len(tokens_of(rank, torch.float32))
    if whole:
        return torch.randint(1, 3, (count, top_k), generator=generator).to(torch.float32)
    return torch.rand(count, top_k, generator=generator)


def labels_of(rank: int, top_k: int = 4) -> torch.Tensor:
    count = len(tokens_of(rank, torch.float32))
    return torch.arange(count * top_k).reshape(count, top_k) + 1000 * rank


def dispatcher(name: str, group: Any, placement: Placement) -> Dispatcher:
    if name == "dedup":
        return DedupDispatch(group, placement)
    return FlatDispatch(group, placement, make_all_to_all(name, group, placement))


def expert(rows: torch.Tensor) -> torch.Tensor:
    """Any function of a row, the same for equal rows."""
    return rows * 3 - 1 if not rows.is_floating_point() else torch.sin(rows) * 3


@pytest.mark.parametrize("case", PLACEMENTS)
@pytest.mark.parametrize("name", ["dedup", "flat"])
def test_every_choice_arrives_in_order_and_sums_come_back(name: str, case: str, tmp_path: Path) -> None:
    placement = PLACEMENTS[case]
    world = placement.world
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64)

    def body(context: Context) -> bytes:
        rank, made, results = context.group.rank, dispatcher(name, group_of(context), placement), []
        for dtype in dtypes:
            weights = weights_of(rank) if dtype.is_floating_point else None
            sent = made.dispatch(tokens_of(rank, dtype), choices_of(rank, world), weights, labels_of(rank))
            back = sent.combine(expert(sent.rows))
            results.append((sent.rows.detach(), sent.labels, sent.rows_from, back.detach()))
        return by_value(results)

    results = loaded(run_world(world, body, tmp_path))
    ranks = [choices_of(rank, world) for rank in range(world)]
    for number, dtype in enumerate(dtypes):
        tokens = [tokens_of(rank, dtype) for rank in range(world)]
        weights = [weights_of(rank) for rank in range(world)] if dtype.is_floating_point else None
        outputs = []
        for rank, choices in enumerate(arrivals(ranks)):
            rows, labels, rows_from, _ = results[rank][number]
            expected = torch.stack([tokens[source][token] for source, token, _ in choices]) if choices else None
            assert torch.equal(rows, torch.zeros(0, WIDTH, dtype=dtype) if expected is None else expected)
            assert labels.tolist() == [int(labels_of(source)[token, choice]) for source, token, choice in choices]
            assert rows_from == tuple(sum(source == one for source, _, _ in choices) for one in range(world))
            outputs.append(expert(rows))
        sums = (
            combined_in_steps(outputs, ranks, weights, placement)
            if name == "dedup"
            else combined_plainly(outputs, ranks, weights)
        )
        for rank in range(world):
            assert torch.equal(results[rank][number][3], sums[rank]), f"{dtype}, rank {rank}"


def test_sums_of_steps_are_those_of_a_plain_dispatch_where_nothing_is_rounded(tmp_path: Path) -> None:
    """Small whole numbers, which every dtype holds exactly: the order of additions does not show."""
    placement = PLACEMENTS["4 nodes of 2"]

    def body(context: Context) -> bytes:
        rank, results = context.group.rank, []
        for name in ("dedup", "flat"):
            made = dispatcher(name, group_of(context), placement)
            sent = made.dispatch(tokens_of(rank, torch.bfloat16), choices_of(rank, 8), weights_of(rank, whole=True))
            results.append(sent.combine(sent.rows).detach())
        return by_value(results)

    for rank, (dedup, flat) in enumerate(loaded(run_world(8, body, tmp_path))):
        assert torch.equal(dedup, flat)
        if rank != 1:
            assert dedup.abs().sum() > 0


@pytest.mark.parametrize("case", ["4 nodes of 2", "uneven", "1 node"])
def test_gradients_are_those_of_one_process(case: str, tmp_path: Path) -> None:
    placement = PLACEMENTS[case]
    world = placement.world

    def scale(rank: int) -> float:
        return 1.0 + 0.5 * rank

    def body(context: Context) -> bytes:
        rank = context.group.rank
        tokens = tokens_of(rank, torch.float32).requires_grad_()
        weights = weights_of(rank).requires_grad_()
        parameter = torch.tensor(scale(rank), requires_grad=True)
        sent = DedupDispatch(group_of(context), placement).dispatch(tokens, choices_of(rank, world), weights)
        back = sent.combine(torch.sin(sent.rows * parameter))
        (back * torch.arange(1, WIDTH + 1)).sum().backward()  # type: ignore[no-untyped-call]
        assert tokens.grad is not None
        assert weights.grad is not None
        assert parameter.grad is not None
        return by_value([back.detach(), tokens.grad, weights.grad, parameter.grad])

    results = loaded(run_world(world, body, tmp_path))
    parameters = [torch.tensor(scale(rank), requires_grad=True) for rank in range(world)]
    for rank in range(world):
        tokens = tokens_of(rank, torch.float32).requires_grad_()
        weights, ranks = weights_of(rank).requires_grad_(), choices_of(rank, world)
        scales = torch.stack(parameters)[ranks.clamp(min=0)]
        outputs = torch.sin(tokens[:, None, :] * scales[:, :, None])
        kept = (ranks != DROPPED).to(torch.float32)
        expected = (outputs * (weights * kept)[:, :, None]).sum(1)
        (expected * torch.arange(1, WIDTH + 1)).sum().backward()  # type: ignore[no-untyped-call]
        back, of_tokens, of_weights, _ = results[rank]
        torch.testing.assert_close(back, expected.detach())
        torch.testing.assert_close(of_tokens, tokens.grad)
        torch.testing.assert_close(of_weights, weights.grad)
    for (_, _, _, of_parameter), parameter in zip(results, parameters, strict=True):
        wanted = torch.zeros(()) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(of_parameter, wanted, rtol=1e-4, atol=1e-4)


def test_ranks_of_which_only_some_want_gradients_do_not_wait_forever(tmp_path: Path) -> None:
    """Rank 0's tokens and weights are constants; it takes part in the backward exchanges all the same."""

    def body(context: Context) -> bool:
        rank = context.group.rank
        tokens, weights = tokens_of(rank, torch.float32), weights_of(rank)
        if rank:
            tokens.requires_grad_()
            weights.requires_grad_()
        sent = DedupDispatch(group_of(context), even_placement(4, 2)).dispatch(tokens, choices_of(rank, 4), weights)
        sent.combine(sent.rows).sum().backward()  # type: ignore[no-untyped-call]
        return tokens.grad is not None

    assert run_world(4, body, tmp_path, timeout_s=20) == [False, True, True, True]


def uniform_choices(rank: int, tokens: int, world: int, top_k: int, experts: int) -> torch.Tensor:
    """Distinct experts, drawn uniformly; the ranks that have them by block."""
    generator = torch.Generator().manual_seed(rank)
    drawn = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :top_k]
    return drawn // (experts // world)


def test_top_8_over_4_nodes_sends_what_the_formula_expects(tmp_path: Path) -> None:
    world, tokens, experts, width = 8, 400, 64, 512
    placement = even_placement(world, 2)

    def body(context: Context) -> tuple[DispatchTraffic, DispatchTraffic]:
        rank = context.group.rank
        rows = torch.zeros(tokens, width, dtype=torch.bfloat16)
        choices = uniform_choices(rank, tokens, world, 8, experts)
        both = [dispatcher(name, group_of(context), placement) for name in ("dedup", "flat")]
        weights = torch.ones(tokens, 8)
        dedup, flat = (made.dispatch(rows, choices, weights).traffic for made in both)
        return dedup, flat

    results = run_world(world, body, tmp_path)
    dedup = sum((one for one, _ in results), start=DispatchTraffic())
    flat = sum((one for _, one in results), start=DispatchTraffic())
    assert dedup.logical_between == flat.logical_between == flat.sent_between
    assert dedup.logical_within == flat.logical_within == flat.sent_within
    row = width * 2
    # Counted choice by choice: distinct remote nodes of each token, and distinct ranks beyond the gateway.
    crossing = passed_on = 0
    for rank in range(world):
        for choices in uniform_choices(rank, tokens, world, 8, experts).tolist():
            crossing += len({one // 2 for one in choices} - {rank // 2})
            passed_on += sum(one % 2 != rank % 2 for one in set(choices))
    assert dedup.sent_between == crossing * row
    assert dedup.sent_within == passed_on * row
    assert dedup.sent_between / dedup.logical_between == pytest.approx(expected_share(4, 8, experts), rel=0.02)
    assert dedup.share_between is not None
    assert dedup.share_between < 0.5
    assert flat.share_between is not None
    assert flat.share_between > 1


def test_a_wrong_rank_is_named(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        made = DedupDispatch(group_of(context), even_placement(2, 1))
        with pytest.raises(ValueError, match="a choice goes to rank 2; the group has 0 to 1") as caught:
            made.dispatch(torch.zeros(3, 2), torch.tensor([[0], [2], [1]]))
        return str(caught.value)

    assert len(set(run_world(2, body, tmp_path))) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(3)}, "tokens have shape"),
        ({"tokens": torch.zeros(3, 0)}, "d above 0"),
        ({"ranks": torch.zeros(2, 1, dtype=torch.int64)}, "one row a token"),
        ({"ranks": torch.zeros(3, 1)}, "int64, not torch.float32"),
        ({"weights": torch.zeros(3, 2)}, "weights have the shape of the choices"),
        ({"weights": torch.zeros(3, 1, dtype=torch.float64)}, "would lose digits"),
        ({"labels": torch.zeros(3, 1)}, "labels are integers"),
    ],
)
def test_arguments_that_do_not_belong_together(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "tokens": torch.zeros(3, 2),
        "ranks": torch.zeros(3, 1, dtype=torch.int64),
        "weights": None,
        "labels": None,
    }
    with pytest.raises(ValueError, match=message):
        check_choices(**{**arguments, **change}, world=1)


def test_combine_takes_a_row_for_each_that_arrived(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        made = DedupDispatch(group_of(context), even_placement(2, 1))
        own = torch.full((3, 1), context.group.rank)
        sent = made.dispatch(torch.zeros(3, 2), own, torch.ones(3, 1))
        with pytest.raises(ValueError, match="combine takes 3 rows"):
            sent.combine(torch.zeros(2, 2))
        with pytest.raises(ValueError, match="take no weights"):
            sent.combine(torch.zeros(3, 2, dtype=torch.int32))

    run_world(2, body, tmp_path)


def test_a_rank_alone_in_its_group_keeps_its_tokens(tmp_path: Path) -> None:
    def body(context: Context) -> list[list[float]]:
        alone = dist.new_subgroups(1)[0]  # type: ignore[no-untyped-call]
        sent = DedupDispatch(alone, even_placement(1, 1)).dispatch(torch.eye(2), torch.tensor([[0, 0], [DROPPED, 0]]))
        assert sent.traffic == DispatchTraffic()
        rows: list[list[float]] = sent.combine(sent.rows).tolist()
        return rows

    assert run_world(2, body, tmp_path) == [[[2.0, 0.0], [0.0, 1.0]]] * 2


def test_two_dispatches_are_combined_in_any_order(tmp_path: Path) -> None:
    """As with microbatches in flight: each knows its own way back."""

    def body(context: Context) -> list[list[float]]:
        made = DedupDispatch(group_of(context), even_placement(4, 2))
        first = made.dispatch(torch.ones(2, 1), torch.tensor([[0, 1], [2, 3]]))
        second = made.dispatch(torch.full((1, 1), 5.0), torch.tensor([[3, 0]]))
        back = second.combine(second.rows)
        return [first.combine(first.rows)[:, 0].tolist(), back[:, 0].tolist()]

    assert run_world(4, body, tmp_path) == [[[2.0, 2.0], [10.0]]] * 4


def test_a_group_in_use_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        made = DedupDispatch(group_of(context), even_placement(2, 1))
        with (
            state_of(group_of(context)).claimed("another exchange"),
            pytest.raises(RuntimeError, match="the group is in use by another exchange"),
        ):
            made.dispatch(torch.zeros(1, 1), torch.tensor([[0]]))

    run_world(2, body, tmp_path)


def test_a_subset_of_the_world_dispatches_alone(tmp_path: Path) -> None:
    def body(context: Context) -> list[int] | None:
        some = dist.new_group([3, 0, 1])
        if context.group.rank == 2:
            return None
        made = DedupDispatch(some, Placement(((0, 1), (2,))))
        me = dist.get_rank(some)
        sent: Dispatched = made.dispatch(torch.full((3, 1), float(me)), torch.tensor([[0], [1], [2]]))
        return [int(value) for value in sent.rows[:, 0]]

    assert run_world(4, body, tmp_path) == [[0, 1, 2], [0, 1, 2], None, [0, 1, 2]]
