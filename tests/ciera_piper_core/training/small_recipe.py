"""A recipe, a corpus and ranks small enough for tests that train."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.systems.system import Ranks
from ciera_piper_core.training.corpus import standard_library
from ciera_piper_core.training.recipe import Recipe

if TYPE_CHECKING:
    from ciera_piper_core.training.corpus import Corpus

ATTENTION = Attention(4, 2, 8, 8)
ARCHITECTURE = Architecture(
    "small", 32, 256, (Layer(ATTENTION, dense=FeedForward(64)), Layer(ATTENTION, Experts(8, 2, 32, shared_ffn=32)))
)


def small_recipe(**settings: Any) -> Recipe:
    """Two layers, eight experts, bytes."""
    return Recipe(ARCHITECTURE, **{"sequence": 32, "global_batch": 8, "learning_rate": 3e-3} | settings)


@cache
def text() -> Corpus:
    """The standard library, read once."""
    return standard_library()


def one_rank() -> Ranks:
    """No others."""
    # The plain system asks its group for nothing where there is one rank.
    return Ranks(dist.GroupMember.NON_GROUP_MEMBER, even_placement(1, 1), torch.device("cpu"))  # type: ignore[arg-type]


def distinct_bytes(sequences: int, length: int, step: int) -> torch.Tensor:
    """A batch ``(sequences, length)`` with no byte twice in a sequence.

    Text has runs of one byte, and their tokens are alike but for the last digit. Where experts choose their
    tokens, which of those they take hangs on how sums were rounded.
    """
    generator = torch.Generator().manual_seed(step)
    return torch.stack([torch.randperm(256, generator=generator)[:length] for _ in range(sequences)])
