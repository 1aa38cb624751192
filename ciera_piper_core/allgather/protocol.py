"""What follows from the headers that all ranks saw: decode, fetch what overflowed, or start anew from plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ciera_piper_core.allgather.errors import GatherMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ciera_piper_core.exponents.payload import PayloadHeader

T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """The same on every rank, since it follows from the same headers.

    Attributes:
        refresh: plain shards follow; nothing may be decoded.
        remainder_bytes: of the second collective, a rank: the most that any rank's variable area lacks;
            0 for none.
        next_epoch: that the refresh begins.
    """

    refresh: bool
    remainder_bytes: int
    next_epoch: int


def judge(headers: Sequence[PayloadHeader], name: str) -> Verdict:
    """What to do, from the headers of all ranks in rank order.

    Args:
        name: of the gather, for errors.

    Raises:
        GatherMismatchError: ranks gather different plans, or have not made the same gathers so far; the
            same error on every rank.
    """
    for what, of in _IDENTITY if len({_identity(header) for header in headers}) > 1 else ():
        groups = grouped(headers, of)
        if len(groups) > 1:
            raise GatherMismatchError(
                f"gather {name!r}: ranks do not agree on {what}: {described(groups)}; "
                "every rank must start the same gathers in the same order"
            )
    bases = {(header.epoch, header.sequence) for header in headers}
    refresh = len(bases) > 1 or any(header.refresh_wanted for header in headers)
    return Verdict(
        refresh=refresh,
        remainder_bytes=0 if refresh else max(header.overflow_bytes for header in headers),
        next_epoch=(max(header.epoch for header in headers) + 1) % 2**32,
    )


_IDENTITY: tuple[tuple[str, Callable[[PayloadHeader], Hashable]], ...] = (
    ("the plan (its digest)", lambda header: f"{header.plan_digest:016x}"),
    ("the number of gathers so far", lambda header: header.attempt),
    ("the coder", lambda header: header.coder_code),
)


def _identity(header: PayloadHeader) -> tuple[int, int, int]:
    """What ``_IDENTITY`` looks at, at once."""
    return header.plan_digest, header.attempt, header.coder_code


def grouped(items: Sequence[T], of: Callable[[T], Hashable]) -> dict[Hashable, list[int]]:
    """Ranks by what their item says."""
    groups: dict[Hashable, list[int]] = {}
    for rank, item in enumerate(items):
        groups.setdefault(of(item), []).append(rank)
    return groups


def described(groups: dict[Hashable, list[int]]) -> str:
    """``rank 0, 2: x; rank 1: y``."""
    return "; ".join(f"rank {', '.join(map(str, ranks))}: {value}" for value, ranks in groups.items())
