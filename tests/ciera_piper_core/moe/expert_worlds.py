"""A plain layer of routed experts and its spread twin, for tests that hold the twin to the plain layer."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.dedup import DedupDispatch
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.models.architecture import Experts
from ciera_piper_core.models.feed_forward import RoutedExperts

if TYPE_CHECKING:
    from bench.suite import Context
    from ciera_piper_core.alltoall.dispatch import Dispatcher
    from ciera_piper_core.alltoall.placement import Placement

HIDDEN, FFN, EXPERTS = 16, 24, 8
SEQUENCE = 12


def group_of(context: Context) -> dist.ProcessGroup:
    """The group of all ranks."""
    assert context.group.data is not None
    return context.group.data


def subgroups(world: int, size: int) -> dist.ProcessGroup:
    """This rank's group among neighbours of that number (collective)."""
    made, _ = dist.new_subgroups(size)
    assert isinstance(made, dist.ProcessGroup)
    return made


def plain_layer(experts: int = EXPERTS, matrices: int = 3, top_k: int = 2) -> RoutedExperts:
    """The same weights wherever it is called, float32."""
    layer = RoutedExperts(Experts(experts, top_k, FFN, matrices=matrices), HIDDEN, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
    return layer


def tokens_of(rank: int, sequences: int = 2) -> torch.Tensor:
    """``(sequences, SEQUENCE, HIDDEN)``, others on each rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(sequences, SEQUENCE, HIDDEN, generator=generator)


def target_of(rank: int, like: torch.Tensor) -> torch.Tensor:
    """What the outputs are multiplied with to make a loss."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(200 + rank))


def dispatcher(kind: str, group: dist.ProcessGroup, placement: Placement) -> Dispatcher:
    """``dedup``, or flat dispatch by an algorithm of that name."""
    if kind == "dedup":
        return DedupDispatch(group, placement)
    return FlatDispatch(group, placement, make_all_to_all(kind, group, placement))


def by_value(results: Any) -> bytes:
    """Tensors as bytes: as themselves they would be shared memory of a rank that may be gone."""
    stream = io.BytesIO()
    torch.save(results, stream)
    return stream.getvalue()


def loaded(results: list[bytes]) -> list[Any]:
    """By rank, what ``by_value`` made of them."""
    return [torch.load(io.BytesIO(one)) for one in results]


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference over the norm of what is wanted."""
    return float((got - wanted).norm() / wanted.norm().clamp(min=1e-30))
