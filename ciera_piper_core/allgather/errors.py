"""What goes wrong in a compressed Allgather."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciera_piper_core.allgather.lane import GatherLane


class GatherError(RuntimeError):
    """A gather that did not complete on this rank; what it was to fill must not be used."""


class GatherMismatchError(GatherError):
    """Ranks do not gather the same thing; the message names those that differ."""


def collective_failure(error: BaseException, name: str, lane: GatherLane) -> BaseException:
    """What to raise for what went wrong amid the collectives of a gather; the lane is of no use from then on."""
    lane.fail(
        f"gather {name!r} was left amid its collectives ({_brief(error)}); the ranks' gathers are out of step, so build"
        " them anew"
    )
    return described_failure(error, name, lane)


def described_failure(error: BaseException, name: str, lane: GatherLane) -> BaseException:
    """The library's error with the gather's name; errors of ours and interruptions as they are."""
    if not isinstance(error, Exception) or isinstance(error, GatherError):
        return error
    failure = GatherError(
        f"gather {name!r}: a collective failed on rank {lane.rank}: {_brief(error)}; a rank may have died, or hangs"
    )
    failure.__cause__ = error
    return failure


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
