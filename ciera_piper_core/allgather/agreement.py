"""What all ranks know of each other before the first gather: everyone's plan, and where each payload's parts lie."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import torch.distributed as dist

from ciera_piper_core.allgather.capacity import ALIGNMENT as PAYLOAD_ALIGNMENT
from ciera_piper_core.allgather.capacity import aligned as payload_aligned
from ciera_piper_core.allgather.errors import GatherMismatchError
from ciera_piper_core.allgather.protocol import described, grouped
from ciera_piper_core.exponents.payload import HEADER_BYTES, RECORD_BYTES, FixedArea, aligned
from ciera_piper_core.exponents.segments import SegmentPlace, ShardPlaces

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import torch

    from ciera_piper_core.allgather.lane import GatherLane
    from ciera_piper_core.allgather.plan import GatherPlan, Segment
    from ciera_piper_core.exponents.backend import Backend


@dataclass(frozen=True)
class CodedArea:
    """A coded segment's place in its rank's payload.

    Attributes:
        segment: of that rank's plan. fixed_offset: of its fixed area, from the payload's begin.
        area: its parts. bound: most bytes of its coded exponents.
    """

    segment: Segment
    fixed_offset: int
    area: FixedArea
    bound: int


@dataclass(frozen=True)
class PayloadShape:
    """Where the parts of one rank's payload lie.

    Attributes:
        coded: the coded segments, in plan order.
        plain: the others, each with the offset of its bytes in the payload.
        fixed_bytes: up to the variable area.
        variable_bound: most bytes of the variable area.
    """

    coded: tuple[CodedArea, ...]
    plain: tuple[tuple[Segment, int], ...]
    fixed_bytes: int
    variable_bound: int

    @classmethod
    def of(cls, plan: GatherPlan, bound: Callable[[int], int]) -> PayloadShape:
        """The shape of a plan's payload.

        Args:
            bound: most coded bytes of so many symbols.
        """
        coded, plain = [], []
        end = HEADER_BYTES + RECORD_BYTES * len(plan.selected)
        for segment in plan.segments:
            if segment.compressed:
                area = FixedArea.of(segment.values, plan.layout, plan.settings.block)
                coded.append(CodedArea(segment, end, area, bound(segment.values)))
                end += area.size
            else:
                plain.append((segment, end))
                end += aligned(plan.segment_bytes(segment))
        return cls(tuple(coded), tuple(plain), end, sum(aligned(one.bound) for one in coded))

    @cached_property
    def places(self) -> ShardPlaces:
        """Of all segments, in the order of the shard."""
        coded = [(one.segment, one.fixed_offset, one.bound) for one in self.coded]
        whole = [*coded, *((segment, offset, None) for segment, offset in self.plain)]
        places = [SegmentPlace(one.values, one.offset, offset, bound) for one, offset, bound in whole]
        # An empty segment begins where the next one does; among those any order will do.
        return ShardPlaces(tuple(sorted(places, key=lambda one: (one.offset, one.first))), self.fixed_bytes)

    def __post_init__(self) -> None:
        # Header, records and areas all are multiples of it, so every rank's room is too.
        assert self.fixed_bytes % aligned(1) == 0


@dataclass(frozen=True)
class Agreement:
    """All ranks' plans, in rank order, and what follows from them alike on every rank.

    Attributes:
        plans: of the ranks: of their whole shards, or of one stage of them.
        shapes: of their payloads. digest: of all plans and of what else must be the same.
        coder_code: of the coded bytes' format.
        starts: where each rank's values begin in the output.
    """

    plans: tuple[GatherPlan, ...]
    shapes: tuple[PayloadShape, ...]
    digest: int
    coder_code: int
    starts: tuple[int, ...]

    @classmethod
    def of(
        cls, plans: tuple[GatherPlan, ...], starts: tuple[int, ...], backend: Backend | None, stage: int = 0
    ) -> Agreement:
        """What follows from plans.

        Args:
            backend: that codes; None where nothing is coded.
            stage: counts the parts of one gather, which are never taken for one another.
        """

        def bound(values: int) -> int:
            if backend is None:
                raise ValueError("coded segments need a backend")
            return backend.coder.bound(values, plans[0].layout.exponent_bits)

        coder = _coder_code(plans[0], backend)
        text = b"".join(one.digest for one in plans) + bytes([coder, stage])
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return cls(plans, tuple(PayloadShape.of(one, bound) for one in plans), digest, coder, starts)

    @cached_property
    def values(self) -> int:
        """Of all ranks together."""
        return sum(plan.values for plan in self.plans)

    @cached_property
    def dense(self) -> bool:
        """Whether the output is what the library's collective gives: parts of one size, one after the other."""
        size = self.plans[0].values
        return all(
            plan.values == size and start == rank * size
            for rank, (plan, start) in enumerate(zip(self.plans, self.starts, strict=True))
        )

    @cached_property
    def most_values(self) -> int:
        """Of the largest shard."""
        return max(plan.values for plan in self.plans)

    @cached_property
    def fixed_bytes(self) -> int:
        """Of the first collective before any room for variable areas, a rank: a multiple of the alignment."""
        return payload_aligned(max(shape.fixed_bytes for shape in self.shapes))

    @cached_property
    def most_bytes(self) -> int:
        """Of any rank's payload, with the largest variable area: a multiple of the alignment."""
        return payload_aligned(max(shape.fixed_bytes + shape.variable_bound for shape in self.shapes))

    @property
    def room_bytes(self) -> int:
        """The most that can be needed beyond ``fixed_bytes``."""
        return self.most_bytes - self.fixed_bytes

    def room(self, rank: int, first_bytes: int) -> int:
        """Bytes of a rank's variable area in a first collective of so many bytes; smaller shards have more."""
        return first_bytes - self.shapes[rank].fixed_bytes

    def need(self, rank: int, variable_bytes: int) -> int:
        """Bytes beyond ``fixed_bytes`` for a rank's variable area of so many bytes."""
        return max(self.shapes[rank].fixed_bytes + variable_bytes - self.fixed_bytes, 0)

    def of_rank(self, out: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's part of the output."""
        return out[self.starts[rank] : self.starts[rank] + self.plans[rank].values]


def agree(plan: GatherPlan, lane: GatherLane, backend: Backend | None) -> Agreement:
    """Exchange plans (collective over the lane).

    Raises:
        GatherMismatchError: they do not fit together; the same error on every rank.
    """
    mine = (plan, _coder_code(plan, backend))
    everyone: list[tuple[GatherPlan, int]] = [mine] * lane.world
    # Nothing may overtake the exchange of plans: it is made on this thread.
    lane.drain()
    if lane.group is not None:
        dist.all_gather_object(everyone, mine, group=lane.group)
    plans = tuple(one for one, _ in everyone)
    _verify(plans, [code for _, code in everyone])
    starts = tuple(accumulate((one.values for one in plans[:-1]), initial=0))
    return Agreement.of(plans, starts, backend)


def _coder_code(plan: GatherPlan, backend: Backend | None) -> int:
    return backend.coder.code if backend is not None and plan.selected else 0


def _verify(plans: tuple[GatherPlan, ...], coders: list[int]) -> None:
    described_by: tuple[tuple[str, Callable[[GatherPlan], Hashable]], ...] = (
        ("the name", lambda one: one.name),
        ("the dtype", lambda one: one.dtype),
        ("the coding settings", lambda one: one.settings),
        ("the number of segments", lambda one: len(one.segments)),
        ("the segments' names and order", lambda one: tuple(segment.name for segment in one.segments)),
        ("which segments are coded", lambda one: tuple(segment.name for segment in one.selected)),
        ("the plan", lambda one: one.shared_digest),
    )
    for what, of in described_by:
        groups = grouped(plans, of)
        if len(groups) > 1:
            raise GatherMismatchError(f"gather {plans[0].name!r}: ranks differ in {what}: {_short(groups)}")
    groups = grouped(coders, lambda code: code)
    if len(groups) > 1:
        raise GatherMismatchError(
            f"gather {plans[0].name!r}: ranks have backends of different formats (coder codes): {described(groups)}; "
            "choose one backend on all ranks"
        )


def _short(groups: dict[Hashable, list[int]]) -> str:
    text = described(groups)
    return text if len(text) <= 600 else text[:600] + " ..."


assert PAYLOAD_ALIGNMENT % aligned(1) == 0
