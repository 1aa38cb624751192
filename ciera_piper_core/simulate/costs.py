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
    ranks = fabric.job.ranks
    inter = fabric.crosses(phase.src, phase.dst)
    sent, received = np.bincount(phase.src, minlength=ranks), np.bincount(phase.dst, minlength=ranks)
    counted, short = phase.bytes, False
    away_out = np.bincount(phase.src, inter, ranks)
    away_in = np.bincount(phase.dst, inter, ranks)
    if away_out.any():
        nics = fabric.bytes_s[fabric.first_nic : fabric.first_nic + fabric.lanes]
        least = float(nics.min()) / terms.nic_messages_s
        incast = terms.rail_incast if phase.rails else terms.incast
        factor = 1.0
        if incast.most > 1:
            domain = fabric.routes.domain
            beyond = inter & (domain[phase.src] != domain[phase.dst])
            factor = float(incast.factor(np.bincount(phase.dst, beyond, ranks).max()))
        short = np.count_nonzero(inter & (phase.bytes < least)) > away_out.sum() / 2
        if least > 0 or factor > 1:
            counted = np.where(inter, np.maximum(phase.bytes, least) * factor, phase.bytes)
    # A rank sends while it receives, so the larger number of the two counts.
    inside, away = np.maximum(sent - away_out, received - away_in), np.maximum(away_out, away_in)
    message_s = terms.phase_start_s + inside * terms.message_intra_s + away * terms.message_inter_s
    copied = np.zeros(ranks) if phase.copied is None else phase.copied
    return PhaseCosts(counted, short, message_s, copied / terms.copy_bytes_s)
