"""What the named terms add to the flows of a phase: longer flows, and fixed seconds of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.simulate.fabric import Fabric
    from ciera_piper_core.simulate.flows import Phase
    from ciera_piper_core.simulate.terms import Terms

    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PhaseCosts:
    """A phase with its terms.

    Attributes:
        bytes: that each flow counts for on its links, at least what it sends, shape ``(flows,)``.
        short: whether most flows between nodes are so short that the NIC's message rate decides.
        message_s: of each rank, for its messages and the phase's start, shape ``(ranks,)``.
        packing_s: of each rank, likewise.
    """

    bytes: Floats
    short: bool
    message_s: Floats
    packing_s: Floats

    @property
    def fixed_s(self) -> Floats:
        """Seconds of each rank beside its flows."""
        return self.message_s + self.packing_s


def costs_of(terms: Terms, fabric: Fabric, phase: Phase) -> PhaseCosts:
    """The costs of one phase."""
    ranks, job = fabric.job.ranks, fabric.job
    inter = fabric.crosses(phase.src, phase.dst)
    counted = phase.bytes
    short = False
    if inter.any():
        nic = fabric.bytes_s[fabric.first_nic + fabric.lane[phase.src]]
        least = nic / terms.nic_messages_s
        short = bool(np.median((phase.bytes < least)[inter]) > 0.5)
        domain = fabric.routes.domain
        beyond = inter & (domain[phase.src] != domain[phase.dst])
        peers = np.bincount(phase.dst[beyond], minlength=ranks).max()
        incast = terms.rail_incast if phase.rails else terms.incast
        factor = float(incast.factor(peers))
        counted = np.where(inter, np.maximum(phase.bytes, least) * factor, phase.bytes)
    # A rank sends while it receives, so the larger number of the two counts.
    def messages(of: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.maximum(
            np.bincount(phase.src[of], minlength=ranks), np.bincount(phase.dst[of], minlength=ranks)
        )

    message_s = terms.phase_start_s + messages(~inter) * terms.message_intra_s + messages(inter) * terms.message_inter_s
    copied = np.zeros(job.ranks) if phase.copied is None else phase.copied
    return PhaseCosts(counted, short, message_s, copied / terms.copy_bytes_s)
