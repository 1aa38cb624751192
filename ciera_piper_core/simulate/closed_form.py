"""Uniform traffic in closed form: the busiest link of each kind, counted once, then microseconds a point.

All messages of a phase are equally long, so max-min fair flows end when the busiest link is done:
its messages times their length over its rate. No flow is ever slower than those of that link are at
first, and that link is busy until its last one ends. Only where a port carries flows of two lengths
(``Node.port_carries_network``) is this a bound, which is near the fluid's answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.simulate import BOTTLENECKS, LINK_KINDS
from ciera_piper_core.simulate.counts import Counts
from ciera_piper_core.simulate.flows import fallback_reason
from ciera_piper_core.simulate.prediction import PhaseTime, Prediction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.simulate import Algorithm, Bottleneck
    from ciera_piper_core.simulate.counts import UniformPhase
    from ciera_piper_core.simulate.job import Job
    from ciera_piper_core.simulate.machine import Machine
    from ciera_piper_core.simulate.terms import Terms

    Floats = NDArray[np.float64]

PORT = LINK_KINDS.index("intra-node")


@dataclass(frozen=True)
class UniformTimes:
    """Times for an array of sizes.

    Attributes:
        seconds: in the shape of the sizes.
        parts: seconds by what they go to, likewise; they add up to ``seconds``.
        phases: of each phase its name, begin, end (seconds, likewise), and its bottleneck as an index
            of ``BOTTLENECKS``.
    """

    seconds: Floats
    parts: Mapping[Bottleneck, Floats]
    phases: tuple[tuple[str, Floats, Floats, NDArray[np.int64]], ...]

    @property
    def bottleneck(self) -> NDArray[np.int64]:
        """What most of the time goes to, as an index of ``BOTTLENECKS``, in the shape of the sizes."""
        return np.asarray(np.argmax(np.stack([self.parts[name] for name in BOTTLENECKS]), axis=0))


@dataclass(frozen=True)
class UniformModel:
    """One algorithm on one job under uniform traffic; ``at`` gives its times for any sizes.

    Attributes:
        terms: costs beyond bandwidth.
        algorithm, fallback: as of ``flows.Schedule``.
        ranks, nodes: of the job.
        phases: counted.
        nic_bytes_s: of the NIC, as the message rate's least length needs it.
    """

    terms: Terms
    algorithm: Algorithm
    fallback: str
    ranks: int
    nodes: int
    phases: tuple[UniformPhase, ...]
    nic_bytes_s: float

    @classmethod
    def build(
        cls,
        machine: Machine,
        algorithm: Algorithm,
        ranks: int,
        ranks_per_node: int | None = None,
        *,
        sent_share: float = 1.0,
    ) -> UniformModel:
        """Count the messages on each link.

        Args:
            ranks_per_node: as many as a node has GPUs if None.
            sent_share: as of ``flows.schedule``.

        Raises:
            ValueError: an unknown algorithm, no place for so many ranks, or a share out of range.
        """
        return cls.of_job(machine, algorithm, machine.job(ranks, ranks_per_node), sent_share=sent_share)

    @classmethod
    def of_job(cls, machine: Machine, algorithm: Algorithm, job: Job, *, sent_share: float = 1.0) -> UniformModel:
        """The same for a job of any placement."""
        if not 0 < sent_share <= 1:
            raise ValueError(f"sent_share must be above 0 and at most 1, not {sent_share!r}")
        reason = fallback_reason(algorithm, job)
        fabric = machine.fabric(job)
        count = Counts.of(fabric)
        phases = count.flat() if algorithm == "flat" or reason else count.hierarchical(algorithm, sent_share)
        nic = float(fabric.bytes_s[fabric.first_nic : fabric.first_nic + fabric.lanes].min())
        return cls(machine.terms, algorithm, reason, job.ranks, job.nodes, phases, nic)

    def at(self, bytes_per_rank: ArrayLike) -> UniformTimes:
        """Times for ranks that send so many bytes each, their own share included.

        Raises:
            ValueError: negative bytes.
        """
        size = np.asarray(bytes_per_rank, dtype=np.float64)
        if not np.all((size >= 0) & np.isfinite(size)):
            raise ValueError("bytes a rank must be finite and not negative")
        parts: dict[Bottleneck, Floats] = {name: np.zeros(size.shape) for name in BOTTLENECKS}
        timed: dict[int, tuple[str, Floats, Floats, NDArray[np.int64]]] = {}
        clock = np.zeros(size.shape)
        for level in range(max((phase.level for phase in self.phases), default=-1) + 1):
            members = [number for number, phase in enumerate(self.phases) if phase.level == level]
            costs = [self._cost(self.phases[number], size) for number in members]
            ends = _side_by_side(costs)
            longest = np.argmax(np.stack(ends), axis=0)
            for place, (number, cost, end) in enumerate(zip(members, costs, ends, strict=True)):
                critical = longest == place
                # Of phases side by side, the shorter counts with what is not hidden of it.
                span = np.where(critical, end, (1 - self.terms.overlap_share) * end)
                fixed = critical * 1.0
                for kind, name in enumerate(BOTTLENECKS):
                    parts[name] += np.where(cost.kind == kind, span - fixed * (cost.message + cost.packing), 0.0)
                parts["message rate"] += fixed * cost.message
                parts["packing"] += fixed * cost.packing
                timed[number] = (self.phases[number].name, clock, clock + end, cost.kind)
            clock = clock + np.max(np.stack(ends), axis=0)
        seconds = np.asarray(sum(parts.values()))
        return UniformTimes(seconds, parts, tuple(timed[number] for number in sorted(timed)))

    def prediction(self, bytes_per_rank: float) -> Prediction:
        """One point, in the form that both engines share."""
        times = self.at(bytes_per_rank)
        return Prediction(
            self.algorithm,
            self.fallback,
            self.ranks,
            self.nodes,
            float(bytes_per_rank),
            float(times.seconds),
            {name: float(part) for name, part in times.parts.items()},
            tuple(
                PhaseTime(name, float(begin), float(end), BOTTLENECKS[int(kind)])
                for name, begin, end, kind in times.phases
            ),
            "closed form",
            self.terms.measured,
            self.terms.assumed,
        )

    def _cost(self, phase: UniformPhase, size: Floats) -> _Cost:
        message = size * phase.shares
        least = self.nic_bytes_s / self.terms.nic_messages_s
        incast = self.terms.rail_incast if phase.rails else self.terms.incast
        factor = float(incast.factor(phase.peers))
        between = np.maximum(message * phase.sent_share, least) * factor
        zero = size == 0
        on_port = [
            (intra * message + inter * between * phase.port_carries_network) / phase.port_bytes_s
            for intra, inter in phase.messages
        ]
        loads = np.stack([between * load for load in phase.load])
        loads[PORT] = np.max(np.stack(on_port), axis=0)
        loads = np.where(zero, 0.0, loads)
        # Rounding must not decide between equally busy links; the first kind is named.
        kind = np.argmax(loads >= loads.max(axis=0) * (1 - 1e-9), axis=0)
        short = (message * phase.sent_share < least) & (kind != PORT)
        sent = np.where(zero, 0.0, 1.0)
        fixed = max(
            intra * self.terms.message_intra_s + inter * self.terms.message_inter_s for intra, inter in phase.messages
        )
        return _Cost(
            loads,
            np.where(short, BOTTLENECKS.index("message rate"), kind),
            self.terms.phase_start_s + sent * fixed,
            size * phase.copied / self.terms.copy_bytes_s,
        )


@dataclass(frozen=True)
class _Cost:
    """One phase for all sizes: seconds by kind of link, shape ``(kinds, *sizes)``; and fixed ones."""

    loads: Floats
    kind: NDArray[np.int64]
    message: Floats
    packing: Floats

    @property
    def alone(self) -> Floats:
        """Seconds of the flows, with nothing beside them."""
        return np.asarray(self.loads.max(axis=0))


def _side_by_side(costs: list[_Cost]) -> list[Floats]:
    """When each of one or two phases ends that begin together.

    Where they use the same links, as many flows of each share them: the shorter ends when both have
    sent as much as it, the longer when all is sent.
    """
    alone = [cost.alone for cost in costs]
    if len(costs) == 1:
        flows = alone
    else:
        together = np.asarray((costs[0].loads + costs[1].loads).max(axis=0))
        shared = together > np.maximum(*alone) * (1 + 1e-9)
        shorter = np.minimum(together, 2 * np.minimum(*alone))
        flows = [
            np.where(shared, np.where(mine <= other, shorter, together), mine)
            for mine, other in (alone, reversed(alone))
        ]
    return [end + cost.message + cost.packing for end, cost in zip(flows, costs, strict=True)]
