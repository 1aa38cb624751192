"""Experts that are spread over ranks and cut over others: outputs and gradients are the plain layer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.models.architecture import Experts
from ciera_piper_core.models.feed_forward import RoutedExperts
from ciera_piper_core.moe.tensor_experts import TensorExpertParallel
from ciera_piper_core.systems.rank_mesh import RankMesh
from ciera_piper_core.systems.system import Ranks
from ciera_piper_core.training.recipe import Routing
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

HIDDEN, FFN, EXPERTS, SEQUENCE = 16, 32, 4, 7


def plain_layer(routing: Routing | None = None, towards: int | None = None) -> RoutedExperts:
    """The same on every rank; ``towards``: every token likes this expert best."""
    layer = RoutedExperts(Experts(EXPERTS, 2, FFN), HIDDEN, dtype=torch.float32, routing=routing)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
        if towards is not None:
            layer.router.weight.zero_()
            layer.router.weight[towards] = 1
    return layer


def tokens_of(data_rank: int, sequences: int, positive: bool) -> torch.Tensor:
    tokens = torch.randn(sequences, SEQUENCE, HIDDEN, generator=torch.Generator().manual_seed(100 + data_rank))
    return tokens.abs() if positive else tokens


def worst(
    context: Context, tp: int, drops: bool, routing: Routing | None = None, towards: int | None = None, idle: int = -1
) -> dict[str, float]:
    """Largest differences to the plain layer over the batch of all data ranks, relative to the norm.

    Args:
        idle: a data rank without tokens.
    """
    assert context.group.data is not None
    world = context.group.world
    ranks = Ranks(context.group.data, even_placement(world, world), torch.device("cpu"))
    mesh = RankMesh(ranks, {"ep": world // tp, "tp": tp})
    ep, group = mesh.coordinate("ep"), mesh.group("ep")
    batches = [tokens_of(one, 0 if one == idle else 2, towards is not None) for one in range(world // tp)]

    plain = plain_layer(routing, towards)
    inputs = [batch.clone().requires_grad_() for batch in batches]
    outputs = [plain(batch) for batch in inputs if len(batch)]
    sum((output.square().sum() for output in outputs), torch.zeros(())).backward()

    dispatcher = FlatDispatch(group, mesh.placement("ep"), make_all_to_all("flat", group))
    spread = TensorExpertParallel(
        plain_layer(routing, towards), group, dispatcher, tensor=mesh.group("tp"), drops_duplicates=drops
    )
    x = batches[ep].clone().requires_grad_()
    output = spread(x)
    output.square().sum().backward()

    def relative(mine: torch.Tensor, right: torch.Tensor) -> float:
        return float((mine - right).norm() / right.norm().clamp(min=1e-12))

    found = {}
    if ep != idle:
        found["output"] = relative(output, outputs[ep - (0 <= idle < ep)])
        found["input"] = relative(x.grad, inputs[ep].grad)  # type: ignore[arg-type]
    router = spread.router.weight.grad
    assert router is not None
    # Copies among ranks with the same tokens; summed over those with others.
    copies = context.group.gather_objects((ep, router))
    assert all(torch.equal(copy, router) for other, copy in copies if other == ep)
    total = router.clone()
    dist.all_reduce(total, group=group)
    found["router"] = relative(total, plain.router.weight.grad)  # type: ignore[arg-type]
    for name, weight in spread.experts.named_parameters():
        right = plain.experts.get_parameter(name).grad
        assert right is not None
        right = spread.cuts[name].part(right[list(spread.local_experts)], mesh.coordinate("tp"))
        found[name] = relative(weight.grad, right)  # type: ignore[arg-type]
    mesh.close()
    return found


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "capacity": {"routing": Routing("capacity", capacity_factor=0.5)},
    "expert-choice": {"routing": Routing("expert_choice")},
    "auxiliary-loss": {"routing": Routing(balance_weight=0.1)},
    "one-expert": {"towards": 3},
    "idle-rank": {"idle": 1},
}


@pytest.mark.parametrize("drops", [True, False], ids=["dropped", "duplicated"])
@pytest.mark.parametrize("case", CASES)
def test_tensor_and_expert_parallel_is_the_plain_layer(case: str, drops: bool, tmp_path: Path) -> None:
    results = run_world(4, lambda context: worst(context, 2, drops, **CASES[case]), tmp_path)
    assert max(max(found.values()) for found in results) < 1e-5


@pytest.mark.parametrize(("world", "tp"), [(2, 1), (2, 2), (4, 4)])
def test_so_it_is_with_one_kind_of_ranks_alone(world: int, tp: int, tmp_path: Path) -> None:
    results = run_world(world, lambda context: worst(context, tp, True), tmp_path)
    assert max(max(found.values()) for found in results) < 1e-5


def test_dropping_duplicates_divides_what_is_sent(tmp_path: Path) -> None:
    def sent(context: Context) -> list[int]:
        assert context.group.data is not None
        ranks = Ranks(context.group.data, even_placement(4, 4), torch.device("cpu"))
        mesh = RankMesh(ranks, {"ep": 2, "tp": 2})
        group = mesh.group("ep")
        dispatcher = FlatDispatch(group, mesh.placement("ep"), make_all_to_all("flat", group))
        bytes_sent = []
        for drops in (True, False):
            layer = TensorExpertParallel(
                plain_layer(), group, dispatcher, tensor=mesh.group("tp"), drops_duplicates=drops
            )
            layer(tokens_of(mesh.coordinate("ep"), 2, False))
            assert layer.traffic is not None
            bytes_sent.append(layer.traffic.sent_within)
        mesh.close()
        return bytes_sent

    dropped, duplicated = (sum(column) for column in zip(*run_world(4, sent, tmp_path), strict=True))
    assert duplicated == 2 * dropped > 0
