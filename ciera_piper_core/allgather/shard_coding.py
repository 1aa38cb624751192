"""One rank's shard to and from its payload: what a sender codes, and what follows one remote sender."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.allgather.statistics import CodedSegments
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.payload import RECORD_BYTES
from ciera_piper_core.exponents.segments import SegmentFaultError, receiver, sender

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from ciera_piper_core.allgather.agreement import PayloadShape
    from ciera_piper_core.allgather.plan import GatherPlan
    from ciera_piper_core.exponents.backend import Backend
    from ciera_piper_core.exponents.payload import PayloadHeader
    from ciera_piper_core.exponents.segments import Received
    from ciera_piper_core.exponents.workspace import Workspace


@dataclass(frozen=True)
class EncodedShard:
    """What :meth:`ShardEncoder.encode` wrote.

    Attributes:
        found: of the coded segments, ``[segments, exponents.segments.FOUND]``.
        variable_bytes: of the variable area that is in use.
    """

    found: NDArray[np.int64]
    variable_bytes: int


class ShardEncoder:
    """This rank's coded segments, with what their receivers have.

    Attributes:
        segments: for the statistics.
    """

    def __init__(
        self, plan: GatherPlan, shape: PayloadShape, backend: Backend, device: torch.device, workspace: Workspace
    ) -> None:
        coded = shape.coded
        self.segments = CodedSegments(
            tuple(one.segment.name for one in coded),
            np.array([one.area.blocks for one in coded], dtype=np.int64),
            np.array([plan.segment_bytes(one.segment) for one in coded], dtype=np.int64),
            np.array([RECORD_BYTES + one.area.size for one in coded], dtype=np.int64),
        )
        self._sender = sender(shape.places, plan.layout, plan.settings, backend, device, workspace)

    @property
    def state_bytes(self) -> int:
        """Memory that outlives a gather."""
        return self._sender.state_bytes

    def encode(self, shard: torch.Tensor, payload: torch.Tensor) -> EncodedShard:
        """Write records, fixed areas and variable area; the header comes later, when the room is known.

        Args:
            shard: bits of the values. payload: uint8, room for the largest payload of this shape.
        """
        return EncodedShard(*self._sender.encode(shard, payload))

    def commit(self) -> None:
        """What was encoded has arrived: the next payload builds on it."""
        self._sender.commit()

    def abort(self) -> None:
        """What was encoded is void."""
        self._sender.abort()

    def refresh(self, shard: torch.Tensor) -> None:
        """Receivers have exactly these values."""
        self._sender.refresh(shard)

    def reset(self) -> None:
        """Receivers have nothing that is known."""
        self._sender.reset()


class ShardDecoder:
    """The coded segments of one remote rank, with the exponents that it sent last."""

    def __init__(
        self,
        rank: int,
        plan: GatherPlan,
        shape: PayloadShape,
        backend: Backend,
        device: torch.device,
        workspace: Workspace,
    ) -> None:
        self._rank = rank
        self._shape = shape
        self._receiver = receiver(shape.places, plan.layout, plan.settings.block, backend, device, workspace)

    @property
    def state_bytes(self) -> int:
        """Memory that outlives a gather: the ExpCache."""
        return self._receiver.state_bytes

    def decode(self, header: PayloadHeader, received: Received, out: torch.Tensor) -> None:
        """Rebuild the shard.

        Args:
            header: of the payload.
            out: bits of the values, written.

        Raises:
            CodedDataError: the payload is not what the sender wrote; names rank and segment. ``out`` and
                the cached exponents are then undefined, until a refresh.
        """
        try:
            self._receiver.decode(header.variable_bytes, received, out)
        except SegmentFaultError as error:
            name = self._shape.coded[error.segment].segment.name
            raise CodedDataError(f"segment {name!r} from rank {self._rank}: {error}") from error
        except CodedDataError as error:
            raise CodedDataError(f"from rank {self._rank}: {error}") from error

    def refresh(self, shard: torch.Tensor) -> None:
        """The sender has exactly these values (bits)."""
        self._receiver.refresh(shard)

    def reset(self) -> None:
        """What the sender has is not known."""
        self._receiver.reset()
