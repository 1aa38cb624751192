"""All-to-all exchanges of rows between ranks: one interface, several algorithms.

Importing this module is cheap; an algorithm loads torch when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch
    import torch.distributed as dist

    from ciera_piper_core.alltoall.placement import Placement
    from ciera_piper_core.alltoall.plan import Plan

ALGORITHMS = ("flat", "two_phase", "halo_v0", "halo_v1", "halo_v2", "auto")
"""Names that ``make_all_to_all`` knows."""

TrafficKind = Literal["uniform", "zipf", "hot_rank", "idle_rank"]
TRAFFIC_KINDS: tuple[TrafficKind, ...] = get_args(TrafficKind)
"""Shapes of traffic that ``traffic.traffic_matrix`` makes, and explains; ``routing_traffic`` routes tokens so."""

ROTATING = "rotating_hot_rank"
REPLAY = "replay:"
"""Begins the name of a replay; the path of the trace follows."""


def known_traffic(text: str) -> bool:
    """Whether ``traffic_steps`` knows a kind of that name (a trace may still be missing)."""
    return text in (*TRAFFIC_KINDS, ROTATING) or (text.startswith(REPLAY) and len(text) > len(REPLAY))


class ExchangeWork(Protocol):
    """An exchange under way. Until it was waited for, its send and receive tensors must not be touched."""

    def wait(self) -> None:
        """Return when the output is complete (on CUDA: when the current stream will see it so); once or more.

        Raises:
            RuntimeError: the exchange failed; each call raises it again.
        """

    def done(self) -> bool:
        """True once ``wait`` would return at once."""


class AllToAll(Protocol):
    """An all-to-all algorithm, bound to its ranks when it is made.

    All calls are collective over the group, and all ranks make them in the same order. A group
    carries one exchange at a time, whatever the algorithm: another one, from this thread or from a
    second, is refused.

    Rows are of any dtype and any shape, the same on all ranks but for their number. ``send`` and
    ``out`` may be non-contiguous (at the price of a copy) and must be on the device that the group
    communicates from.

    Attributes:
        name: as in ``ALGORITHMS``.
        fallback_reason: why the ranks exchange directly although the name says otherwise; None if they do not.
    """

    name: str
    fallback_reason: str | None

    def exchange(
        self,
        send: torch.Tensor,
        send_splits: Sequence[int] | None,
        recv_splits: Sequence[int] | None,
        out: torch.Tensor,
    ) -> None:
        """Send rows to every rank of the group and receive rows from every rank.

        On CUDA it is enqueued on the current stream; on CPU ``out`` is complete on return.

        Args:
            send: shape ``(sum(send_splits), *row)``: the rows for rank 0, then for rank 1, ...
            send_splits: rows for each rank, zeros allowed; None for equal shares on *all* ranks,
                which spares hierarchical algorithms an exchange of counts.
            recv_splits: rows from each rank. They must be what the ranks send, which nobody verifies
                unless ``check_splits`` was asked for; None for equal shares.
            out: shape ``(sum(recv_splits), *row)``: filled with the rows from rank 0, then rank 1, ...

        Raises:
            ValueError: splits and tensors do not belong together.
            RuntimeError: another exchange is under way on the group, or a peer was lost; after the
                latter the algorithm and its groups are of no more use.
        """

    def start(
        self,
        send: torch.Tensor,
        send_splits: Sequence[int] | None,
        recv_splits: Sequence[int] | None,
        out: torch.Tensor,
    ) -> ExchangeWork:
        """Begin what ``exchange`` does and return: it runs on a thread (CPU) or a stream (CUDA) of its own."""

    def plan(self, send_splits: Sequence[int] | None, recv_splits: Sequence[int] | None) -> Plan:
        """What the algorithm must know of splits before it moves rows, to be used for any number of exchanges.

        Hierarchical algorithms exchange counts here, for both directions: ``plan.reverse()`` of the
        answering exchange costs nothing.
        """

    def run(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        """``exchange``, with splits that were planned."""

    def start_run(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> ExchangeWork:
        """``start``, with splits that were planned."""


def make_all_to_all(
    name: str,
    group: dist.ProcessGroup,
    placement: Placement | None = None,
    *,
    check_splits: bool = False,
    profile: Any = None,
) -> AllToAll:
    """The algorithm of that name over the ranks of ``group`` (collective).

    Algorithms of the same group and placement share their groups of ranks, so making another one
    is cheap.

    Args:
        group: may be a subset of all ranks, of which only these then call.
        placement: where the group's ranks are; None to find out (``placement_from_environment``;
            the flat algorithm does not ask).
        check_splits: verify on all ranks that what each sends is what its peers expect, whenever
            splits are planned. It costs an exchange of counts, and is for tests and for finding faults.
        profile: of the platform, for ``auto``; see ``auto.py``.

    Raises:
        ValueError: no such algorithm (the message lists them), or a placement of other ranks.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"unknown all-to-all algorithm {name!r}; known: {', '.join(ALGORITHMS)}")
    if name == "flat":
        from ciera_piper_core.alltoall.flat import FlatAllToAll

        return FlatAllToAll(group, check_splits=check_splits)
    if placement is None:
        from ciera_piper_core.alltoall.placement import placement_from_environment

        placement = placement_from_environment(group)
    if name == "auto":
        from ciera_piper_core.alltoall.auto import AutoAllToAll

        return AutoAllToAll(group, placement, check_splits=check_splits, profile=profile)
    if name == "two_phase":
        from ciera_piper_core.alltoall.two_phase import TwoPhaseAllToAll

        return TwoPhaseAllToAll(group, placement, check_splits=check_splits)
    from ciera_piper_core.alltoall.halo import HaloAllToAll

    return HaloAllToAll(group, placement, variant=name.removeprefix("halo_"), check_splits=check_splits)
