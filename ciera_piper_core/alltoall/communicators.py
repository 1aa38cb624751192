"""What is kept for each group of ranks: the groups inside nodes and along rails, and who uses them now."""

from __future__ import annotations

import threading
import traceback
import uuid
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ciera_piper_core.alltoall.connect_sockets import connect_node, connect_rail
from ciera_piper_core.alltoall.direct_sockets import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    from ciera_piper_core.alltoall.direct_sockets import DirectSockets
    from ciera_piper_core.alltoall.host_blocks import Pieces
    from ciera_piper_core.alltoall.placement import Placement


Result = TypeVar("Result")


class Started(Protocol):
    """An exchange under way, of this project's or the library's."""

    def wait(self) -> object:
        """Return when it is complete; on CUDA when the current stream will see it so."""


@dataclass(eq=False)
class Communicators:
    """The two groups that this rank exchanges through.

    Algorithms hold this, never the groups: when ``close`` drops them here, their connections close.

    Attributes:
        internal: the ranks of its node, in order of local index.
        rail: the ranks with its local index, in order of node.
        node, local: its place.
        node_sockets, rail_sockets: to the ranks of either, where the group is gloo's and they can be reached so.
    """

    internal: dist.ProcessGroup
    rail: dist.ProcessGroup
    node: int
    local: int
    node_sockets: DirectSockets | None = None
    rail_sockets: DirectSockets | None = None

    def exchange_within_node(
        self,
        out: torch.Tensor,
        send: torch.Tensor,
        recv_splits: list[int] | None = None,
        send_splits: list[int] | None = None,
    ) -> None:
        """``all_to_all_single`` between the ranks of the node, in the fastest way that there is.

        On CUDA it is enqueued on the current stream; on CPU ``out`` is complete on return.
        """
        _exchange(self.node_sockets, self.internal, out, send, recv_splits, send_splits)

    def exchange_along_rail(
        self,
        out: torch.Tensor,
        send: torch.Tensor,
        recv_splits: list[int] | None = None,
        send_splits: list[int] | None = None,
    ) -> None:
        """The same between the ranks of the rail."""
        _exchange(self.rail_sockets, self.rail, out, send, recv_splits, send_splits)

    def start_along_rail(
        self,
        out: torch.Tensor,
        send: torch.Tensor,
        recv_splits: list[int] | None = None,
        send_splits: list[int] | None = None,
    ) -> Started:
        """Begin ``exchange_along_rail``; it also moves while an exchange within the node is waited for."""
        if self.rail_sockets is not None and not send.is_cuda:
            return self.rail_sockets.start(out, send, recv_splits, send_splits)
        work: Started = dist.all_to_all_single(out, send, recv_splits, send_splits, group=self.rail, async_op=True)
        return work

    def direct(self, send: torch.Tensor) -> bool:
        """Whether all messages of such a tensor go through sockets, for which nothing needs to be packed."""
        return self.node_sockets is not None and self.rail_sockets is not None and not send.is_cuda

    def start_pieces(
        self, along: Literal["node", "rail"], sources: Sequence[Pieces], targets: Sequence[Pieces]
    ) -> Started:
        """Begin an exchange of messages that lie in pieces of memory, through sockets (see ``direct``).

        Args:
            along: with whom. sources, targets: by the rank's place there, its own among them.
        """
        sockets = self.node_sockets if along == "node" else self.rail_sockets
        assert sockets is not None, "direct() says whether there are sockets"
        return sockets.start_pieces(sources, targets)

    def close(self) -> None:
        """Hang up, without a word to the peers, of whom some may be lost; they get an error where they wait."""
        for sockets in (self.node_sockets, self.rail_sockets):
            if sockets is not None:
                sockets.close()
        for name in ("rail", "internal"):
            # A gloo group closes its connections with the last reference to it.
            _abandon(self.__dict__.pop(name))


def _exchange(
    sockets: DirectSockets | None,
    group: dist.ProcessGroup,
    out: torch.Tensor,
    send: torch.Tensor,
    recv_splits: list[int] | None,
    send_splits: list[int] | None,
) -> None:
    if sockets is not None and not send.is_cuda:
        sockets.exchange(out, send, recv_splits, send_splits)
    else:
        dist.all_to_all_single(out, send, recv_splits, send_splits, group=group)


class GroupState:
    """What algorithms on one group share: the groups within it, and the one exchange that may be under way."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self._communicators: dict[tuple[tuple[int, ...], ...], Communicators] = {}
        self._guard = threading.Lock()
        self._holder: tuple[str, threading.Thread] | None = None
        self._broken: str | None = None

    def is_of(self, group: dist.ProcessGroup) -> bool:
        """False if the group that this was made for is gone, and another has its name."""
        return self._group() is group

    def communicators(self, placement: Placement) -> Communicators:
        """The groups within, made at the first call for a placement (collective then).

        Raises:
            ValueError: the placement is of another number of ranks, or has nodes of unequal size.
        """
        if placement.nodes not in self._communicators:
            group = self._group()
            assert group is not None, "an algorithm holds its group"
            self._communicators[placement.nodes] = _make_communicators(group, placement)
        return self._communicators[placement.nodes]

    def claim(self, what: str) -> None:
        """Take the group for one exchange, until ``release``.

        Raises:
            RuntimeError: it is taken, or an earlier exchange lost a peer.
        """
        with self._guard:
            if self._broken is not None:
                raise RuntimeError(
                    f"this group lost a peer in an earlier exchange ({self._broken}); form a new group of ranks"
                )
            thread = threading.current_thread()
            if self._holder is not None:
                other, its_thread = self._holder
                raise RuntimeError(
                    f"{what} in thread {thread.name!r} cannot begin: the group is in use by {other} of thread "
                    f"{its_thread.name!r}. A group carries one exchange at a time; wait for the one under way, "
                    "or use a second group"
                )
            self._holder = (what, thread)

    def release(self) -> None:
        """Leave the group to the next exchange."""
        with self._guard:
            self._holder = None

    @contextmanager
    def claimed(self, what: str) -> Iterator[None]:
        """``claim`` and ``release`` around a block that communicates."""
        self.claim(what)
        try:
            yield
        except (RuntimeError, KeyboardInterrupt) as error:
            self._give_up(error)
            raise
        finally:
            self.release()

    def call(self, what: str, body: Callable[[], Result]) -> Result:
        """What ``body`` returns, called between ``claim`` and ``release``: ``claimed`` in less time."""
        self.claim(what)
        try:
            return self.guarded(body)
        finally:
            self.release()

    def guarded(self, body: Callable[[], Result]) -> Result:
        """What ``body`` returns, which communicates while the group is claimed."""
        try:
            return body()
        except (RuntimeError, KeyboardInterrupt) as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """Leave no rank waiting for this one.

        The peers of a failed rank may wait for a part that will never come. Closing this rank's
        connections within its node and along its rail ends their wait too, and so on from rank to rank.
        """
        with self._guard:
            self._broken = (str(error) or type(error).__name__).splitlines()[0]
        # Frames of the calls that failed still refer to the groups that are to go.
        traceback.clear_frames(error.__traceback__)
        self.close()

    def close(self) -> None:
        """Close the groups within."""
        while self._communicators:
            self._communicators.popitem()[1].close()


_states: dict[str, GroupState] = {}
_states_guard = threading.Lock()


def state_of(group: dist.ProcessGroup) -> GroupState:
    """The state that all algorithms on ``group`` share."""
    name = group.group_name
    with _states_guard:
        if name not in _states or not _states[name].is_of(group):
            _states[name] = state = GroupState(group)
            # With the group go those within, so that nothing is left for the end of the process.
            weakref.finalize(group, _forget, name, state)
        return _states[name]


def _forget(name: str, state: GroupState) -> None:
    with _states_guard:
        if _states.get(name) is state:
            del _states[name]
    state.close()


def _make_communicators(group: dist.ProcessGroup, placement: Placement) -> Communicators:
    if placement.world != dist.get_world_size(group):
        raise ValueError(f"a placement of {placement.world} ranks for a group of {dist.get_world_size(group)}")
    if not placement.even:
        raise ValueError("rails need nodes of one size")
    rank = dist.get_rank(group)
    node, local = placement.node_of(rank), placement.local_index(rank)
    # A name that was never used in this store, and that all ranks know.
    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, group=group, group_src=0)
    # Every rank makes the group of its node first, then that of its rail: no two wait for each other crosswise.
    internal = _subgroup(group, placement.nodes[node], f"{name[0]}/node{node}")
    along = tuple(ranks[local] for ranks in placement.nodes)
    rail = _subgroup(group, along, f"{name[0]}/rail{local}")
    if "gloo" not in dist.get_backend(group):
        return Communicators(internal, rail, node, local)
    watch, timeout = Watch(), _timeout(group)
    to_neighbours = connect_node(internal, placement.nodes[node], timeout, watch)
    along_rail = connect_rail(rail, along, timeout, watch)
    return Communicators(internal, rail, node, local, to_neighbours, along_rail)


def _subgroup(group: dist.ProcessGroup, ranks: tuple[int, ...], name: str) -> dist.ProcessGroup:
    """A group of some of ``group``'s ranks, whose numbers in it follow ``ranks``; only they take part.

    ``torch.distributed.new_group`` either wants every rank of the world, or names groups after the
    number of groups that a rank has seen: ranks that have seen different ones would wait forever.
    So this names them itself.
    """
    members = [dist.get_global_rank(group, rank) for rank in ranks]
    backend = dist.get_backend(group)
    _, store = c10d._world.pg_map[c10d._get_default_group()]
    made, _ = c10d._new_process_group_helper(
        len(members),
        members.index(dist.get_rank()),
        members,
        dist.Backend(backend),
        store,
        c10d.GroupName(f"alltoall/{name}"),
        timeout=_timeout(group),
        device_id=group.bound_device_id,
        group_desc=f"all-to-all {name.rpartition('/')[2]}",
    )
    c10d._world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(members)}
    assert isinstance(made, dist.ProcessGroup)
    if "nccl" in backend:
        # NCCL connects ranks at their first call, and wants them all there; later ones may leave some out.
        dist.all_reduce(torch.zeros(1, device="cuda"), group=made)
    return made


def _timeout(group: dist.ProcessGroup) -> timedelta:
    """The group's own limit on a call."""
    device = torch.device("cuda" if "nccl" in dist.get_backend(group) else "cpu")
    timeout: timedelta = group._get_backend(device).options._timeout
    return timeout


def _abandon(group: dist.ProcessGroup) -> None:
    """Stop using a group whose peers may be lost; it must not be waited for."""
    if group not in c10d._world.pg_map:
        # Destroyed already, with all groups.
        return
    if "nccl" in dist.get_backend(group):
        group.abort()
    else:
        dist.destroy_process_group(group)
