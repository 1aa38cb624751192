"""Every algorithm against the plain reference, bit for bit, over nodes, ranks, splits and dtypes, there and back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import communicators, make_all_to_all
from ciera_piper_core.alltoall.autograd import differentiable
from ciera_piper_core.alltoall.communicators import Communicators
from ciera_piper_core.alltoall.placement import Placement, even_placement
from tests.ciera_piper_core.alltoall.exchanged_rows import DTYPES, matrices, received, same_bits, sent
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.alltoall import AllToAll

NAMES = ("flat", "two_phase", "halo_v0", "halo_v1", "halo_v2")

SHAPES = [(nodes, per_node) for nodes in range(1, 9) for per_node in range(1, 5) if nodes * per_node <= 16]
UNUSUAL = {
    "uneven nodes": Placement(((0, 1, 2), (3, 4), (5,))),
    "nodes by turns": Placement(((0, 2, 4), (1, 3, 5))),
    "shuffled": Placement(((5, 2), (0, 7), (4, 1), (3, 6))),
    "prime, one node": even_placement(5, 5),
    "prime, uneven nodes": Placement(((0, 1, 2, 3), (4, 5, 6))),
    "prime, one rank a node": even_placement(3, 1),
}


@contextmanager
def packing() -> Iterator[None]:
    """As on a GPU, or where there are no sockets: rows are packed for each phase."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicators, "direct", lambda self, send: False)
        yield


def check(algorithm: AllToAll, rank: int, matrix: np.ndarray | None, world: int, dtype: torch.dtype) -> None:
    """One exchange, its answer, and a started one; None for equal shares."""
    shape = (3,)
    rows = np.full((world, world), 2) if matrix is None else matrix
    splits = (None, None) if matrix is None else (rows[rank].tolist(), rows[:, rank].tolist())
    send, expected = sent(rank, rows, shape, dtype), received(rank, rows, shape, dtype)
    out = torch.zeros_like(expected)
    algorithm.exchange(send, *splits, out)
    assert same_bits(out, expected), f"{algorithm.name} {dtype}: exchange"
    plan = algorithm.plan(*splits)
    answer = torch.zeros_like(send)
    algorithm.run(plan.reverse(), out, answer)
    assert same_bits(answer, send), f"{algorithm.name} {dtype}: answer"
    started = torch.zeros_like(expected)
    work = algorithm.start_run(plan, send, started)
    work.wait()
    assert work.done()
    assert same_bits(started, expected), f"{algorithm.name} {dtype}: started"


def check_gradient(algorithm: AllToAll, rank: int, matrix: np.ndarray, dtype: torch.dtype) -> None:
    """What comes back for each row is the gradient of where it went."""
    weights = [np.float64(1 + 10 * rank + peer) for peer in range(len(matrix))]
    send = torch.ones(int(matrix[rank].sum()), 2, dtype=dtype, requires_grad=True)
    out = differentiable(algorithm, send, matrix[rank].tolist(), matrix[:, rank].tolist())
    by_sender = torch.tensor(np.repeat(weights, matrix[:, rank]), dtype=dtype)
    (out * by_sender[:, None]).sum().backward()
    # Row to peer: the peer's weight for this sender.
    expected = torch.tensor(np.repeat([1 + 10 * peer + rank for peer in range(len(matrix))], matrix[rank]), dtype=dtype)
    assert send.grad is not None
    assert same_bits(send.grad, expected[:, None].expand(-1, 2)), f"{algorithm.name} {dtype}: gradient"


@pytest.mark.parametrize("nodes", range(1, 9))
def test_all_agree_with_the_reference(nodes: int, tmp_path: Path) -> None:
    shapes = [shape for shape in SHAPES if shape[0] == nodes]
    world = max(nodes * per_node for _, per_node in shapes)

    def body(context: Context) -> None:
        rank = context.group.rank
        for _, per_node in shapes:
            ranks = nodes * per_node
            # A subset of the world, which the others know nothing of.
            group = dist.new_group(list(range(ranks)))
            if rank >= ranks or ranks == 1:
                continue
            for name in NAMES:
                algorithm = make_all_to_all(name, group, even_placement(ranks, per_node), check_splits=True)
                expects_fallback = name != "flat" and (nodes == 1 or per_node == 1)
                assert (algorithm.fallback_reason is not None) == expects_fallback
                check(algorithm, rank, None, ranks, torch.float32)
                for number, matrix in enumerate(matrices(ranks).values()):
                    check(algorithm, rank, matrix, ranks, DTYPES[(number + ranks) % len(DTYPES)])
                for dtype in (torch.float64, torch.bfloat16):
                    check_gradient(algorithm, rank, matrices(ranks)["ragged"], dtype)
                with packing():
                    check(algorithm, rank, None, ranks, torch.float32)
                    check(algorithm, rank, matrices(ranks)["ragged"], ranks, torch.int32)

    run_world(max(world, 2), body, tmp_path)


@pytest.mark.parametrize("way", ["sockets", "library"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_placements(name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = UNUSUAL[name]
    world = placement.world
    if way == "library":
        for connect in ("connect_node", "connect_rail"):
            monkeypatch.setattr(communicators, connect, lambda *_: None)

    def body(context: Context) -> None:
        assert context.group.data is not None
        for algorithm_name in NAMES:
            algorithm = make_all_to_all(algorithm_name, context.group.data, placement, check_splits=True)
            check(algorithm, context.group.rank, None, world, torch.float32)
            for matrix in matrices(world).values():
                check(algorithm, context.group.rank, matrix, world, torch.int16)
            check_gradient(algorithm, context.group.rank, matrices(world)["ragged"], torch.float32)

    run_world(world, body, tmp_path)


def test_every_dtype_and_shape_of_row(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank, group = context.group.rank, context.group.data
        assert group is not None
        matrix = matrices(4)["ragged"]
        splits = matrix[rank].tolist(), matrix[:, rank].tolist()
        for name in NAMES:
            algorithm = make_all_to_all(name, group, even_placement(4, 2))
            for dtype in DTYPES:
                for shape in ((), (1,), (3,), (8,), (2, 5), (0,), (3, 0)):
                    send, expected = sent(rank, matrix, shape, dtype), received(rank, matrix, shape, dtype)
                    out = torch.zeros_like(expected)
                    algorithm.exchange(send, *splits, out)
                    assert same_bits(out, expected), f"{name} {dtype} {shape}"

    run_world(4, body, tmp_path)


def test_tensors_that_are_not_plain_memory(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank, group = context.group.rank, context.group.data
        assert group is not None
        matrix = matrices(4)["ragged"]
        splits = matrix[rank].tolist(), matrix[:, rank].tolist()
        for name in NAMES:
            algorithm = make_all_to_all(name, group, even_placement(4, 2))
            send = sent(rank, matrix, (4, 3), torch.float32)
            expected = received(rank, matrix, (4, 3), torch.float32)
            # Every other column of something wider, on both sides.
            wide = torch.full((len(send), 4, 6), 7.0)
            wide[:, :, ::2] = send
            out = torch.full((len(expected), 4, 6), 7.0)
            algorithm.exchange(wide[:, :, ::2], *splits, out[:, :, ::2])
            assert same_bits(out[:, :, ::2], expected)
            assert bool((out[:, :, 1::2] == 7).all()), "what lies between was left alone"
            # Off the boundaries of the integers that rows are moved as.
            shifted = torch.zeros(len(send) * 12 + 1)
            shifted[1:] = send.view(-1)
            target = torch.zeros(len(expected) * 12 + 1)
            algorithm.exchange(shifted[1:].view(-1, 4, 3), *splits, target[1:].view(-1, 4, 3))
            assert same_bits(target[1:].view(-1, 4, 3), expected)
            # Not yet conjugated.
            lazy = torch.complex(send, send).conj()
            turned = torch.zeros(len(expected), 4, 3, dtype=torch.complex64)
            algorithm.exchange(lazy, *splits, turned)
            assert same_bits(turned, torch.complex(expected, -expected))

    run_world(4, body, tmp_path)
