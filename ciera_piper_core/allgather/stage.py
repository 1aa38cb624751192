"""One stage of a plan's gathers: a part of every rank's shard, with its own payload, base and collectives."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ciera_piper_core.allgather.exchange import Exchange, Transfer
from ciera_piper_core.allgather.shard_coding import ShardDecoder, ShardEncoder
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ciera_piper_core.allgather.agreement import Agreement
    from ciera_piper_core.allgather.lane import GatherLane
    from ciera_piper_core.allgather.statistics import CodedSegments
    from ciera_piper_core.exponents.backend import Backend


class Stage:
    """Codes, exchanges and decodes its part; small shards have one stage, which is all of it.

    ``valid`` says whether this rank and all others hold the base that ``epoch`` and ``sequence`` name:
    the exponents of the last gather that was completed here.
    """

    def __init__(self, agreement: Agreement, begin: int, lane: GatherLane, backend: Backend) -> None:
        """
        Args:
            agreement: on this stage. begin: values of this rank's shard before it.
        """
        self.agreement = agreement
        self._begin = begin
        self.exchange = Exchange(agreement, lane)
        self.valid = False
        self._rank = lane.rank
        self._epoch = self._sequence = 0
        plans, shapes, device = agreement.plans, agreement.shapes, lane.device
        self.encoder = ShardEncoder(plans[lane.rank], shapes[lane.rank], backend, device, lane.encode_workspace())
        # Each rank begins with the next one, so that not all read the same memory at once.
        others = [(lane.rank + step) % lane.world for step in range(1, lane.world)]
        self.decoders = {
            rank: ShardDecoder(rank, plans[rank], shapes[rank], backend, device, lane.decode_workspace)
            for rank in others
        }

    @property
    def state_bytes(self) -> int:
        """Memory that coding keeps between gathers."""
        return self.encoder.state_bytes + sum(decoder.state_bytes for decoder in self.decoders.values())

    def transfer(self, shard: torch.Tensor, out: torch.Tensor) -> Transfer:
        """What will carry this stage.

        Args:
            shard: bits of this rank's whole shard. out: of all ranks' whole shards.
        """
        part = shard[self._begin : self._begin + self.agreement.plans[self._rank].values]
        return Transfer(part, out, self._epoch, self._sequence)

    def encode(self, transfer: Transfer) -> None:
        """Code the shard, if receivers share a base. What fails here makes all ranks refresh instead."""
        began = time.perf_counter_ns()
        if self.valid:
            assert transfer.payload is not None
            with region("allgather.encode"):
                try:
                    transfer.encoded = self.encoder.encode(transfer.shard, transfer.payload)
                except Exception as error:
                    self.encoder.abort()
                    transfer.encode_error = error
        transfer.encode_ns = time.perf_counter_ns() - began

    def complete(self, transfer: Transfer) -> None:
        """Rebuild what came, and only then let this rank's state advance.

        Raises:
            CodedDataError: what came is not what was sent; names rank and segment.
        """
        began = time.perf_counter_ns()
        verdict = transfer.verdict
        assert verdict is not None
        with region("allgather.decode"):
            if verdict.refresh:
                self._refresh(transfer, verdict.next_epoch)
            else:
                for rank, decoder in self.decoders.items():
                    decoder.decode(
                        transfer.headers[rank],
                        self.exchange.received(transfer, rank),
                        self.agreement.of_rank(transfer.out, rank),
                    )
                self.encoder.commit()
                self._sequence = (self._sequence + 1) % 2**32
        transfer.decode_ns = time.perf_counter_ns() - began

    def found(self, transfer: Transfer) -> tuple[CodedSegments, NDArray[np.int64]] | None:
        """What was found of each segment, for the statistics; nothing after a refresh."""
        if transfer.encoded is None or transfer.verdict is None or transfer.verdict.refresh:
            return None
        return self.encoder.segments, transfer.encoded.found

    def void(self) -> None:
        """What other ranks hold is not known any more: this rank asks for a refresh."""
        self.valid = False
        self.encoder.reset()
        for decoder in self.decoders.values():
            decoder.reset()

    def _refresh(self, transfer: Transfer, epoch: int) -> None:
        """Every rank has plain values of all ranks: they are the base from now on."""
        self.void()
        # From the output, which is what was sent, whatever became of the shard meanwhile.
        self.encoder.refresh(self.agreement.of_rank(transfer.out, self._rank))
        for rank, decoder in self.decoders.items():
            decoder.refresh(self.agreement.of_rank(transfer.out, rank))
        self._epoch, self._sequence, self.valid = epoch, 0, True
