"""A side of a comparison within one of its ranks: opened once, then as many timed turns as it is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure.clock import clock_offsets_ns, loop_for
from bench.measure.runner import counted, first_reason, memory_reason, placed_case
from bench.suite import ComparableWorkload

if TYPE_CHECKING:
    from bench.measure.progress import Phase, Progress
    from bench.suite import Case, Context, Suite

PHASES: dict[str, Phase] = {
    "open": "setup",
    "forecast": "setup",
    "turn": "measure",
    "inspect": "check",
    "close": "check",
}
"""What a rank is said to do while it answers each message."""
SIDE = "bench.comparison"
"""Where the open side is kept in the context's scratch."""


@dataclass
class OpenSide:
    """A side that was set up.

    Attributes:
        workload: of its case.
        context: that it runs in.
        progress: what the supervisor is told.
    """

    workload: ComparableWorkload
    context: Context
    progress: Progress

    def run(self, untimed: int, timed: int) -> dict[str, Any]:
        """So many iterations, of which the first are not timed (collective).

        Returns:
            ``seconds`` and ``entry_ns`` of the timed ones, each a list a rank; ``series`` and ``choices`` so far.
        """
        group = self.context.group
        loop = loop_for(self.context.site.device)
        prepare = counted(self.workload.prepare, self.progress)
        if untimed:
            loop([self.workload.run] * untimed, prepare, group.barrier)
        if not timed:
            return {"seconds": [[]] * group.world, "entry_ns": [[]] * group.world, **self._course()}
        entries, durations = loop([self.workload.run] * timed, prepare, group.barrier)
        everyone = group.gather(np.array([entries, durations], dtype=np.float64))
        starts = everyone[:, 0] - clock_offsets_ns(group)[:, np.newaxis]
        return {
            "seconds": (everyone[:, 1] / 1e9).tolist(),
            "entry_ns": starts.tolist(),
            **self._course(),
        }

    def inspect(self) -> dict[str, Any]:
        """Iterations with instruments, and what they found on rank 0 (collective)."""
        self.workload.inspect()
        observed = {name: list(map(float, samples)) for name, samples in self.workload.observations().items()}
        return {"observed": observed, **self._course(), "work": asdict(self.workload.work)}

    def forecast(self, profile: str) -> dict[str, Any]:
        """What a model says that an iteration takes, on rank 0 (collective)."""
        return asdict(self.workload.forecast(profile))

    def _course(self) -> dict[str, Any]:
        return {
            "series": {name: list(map(float, values)) for name, values in self.workload.series().items()},
            "choices": [list(map(float, each)) for each in self.workload.choices()],
        }


def answer(
    message: dict[str, Any], suite: Suite, case: Case, context: Context, progress: Progress
) -> list[dict[str, Any]]:
    """What the ranks say to one message of a comparison, in one record (collective).

    Raises:
        Exception: whatever the suite raises; the group is then in an unknown state.
    """
    progress.phase, progress.ticks = PHASES[message["type"]], 0
    if message["type"] == "open":
        return [_open(message, suite, case, context, progress)]
    side: OpenSide = context.scratch[SIDE]
    if message["type"] == "forecast":
        return [side.forecast(str(message["profile"]))]
    if message["type"] == "turn":
        return [side.run(int(message["untimed"]), int(message["timed"]))]
    if message["type"] == "inspect":
        return [side.inspect()]
    side.workload.close()
    del context.scratch[SIDE]
    return [{}]


def _open(message: dict[str, Any], suite: Suite, case: Case, context: Context, progress: Progress) -> dict[str, Any]:
    """Set the side up: its conditions, or why it cannot run here."""
    group, site = context.group, context.site
    progress.iteration = 0
    skip = first_reason(group.gather_objects(suite.skip_reason(case, site) or memory_reason(suite, case, site)))
    if skip:
        return {"skipped": skip}
    context.scratch.update(message["given"])
    workload = suite.setup(case, replace(context, alive=progress.tick))
    if not isinstance(workload, ComparableWorkload):
        raise TypeError(f"setup of {suite.name} gave a {type(workload).__name__}, which is no ComparableWorkload")
    context.scratch[SIDE] = OpenSide(workload, context, progress)
    everyone = group.gather_objects(dict(workload.conditions()))
    for rank, conditions in enumerate(everyone):
        if differs := [name for name in everyone[0] if conditions.get(name) != everyone[0][name]]:
            name = differs[0]
            raise ValueError(
                f"{name} is {everyone[0][name]!r} on rank 0 and {conditions.get(name)!r} on rank {rank};"
                " the ranks of a side must do the same"
            )
    return {
        "conditions": everyone[0],
        "work": asdict(workload.work),
        "given": dict(workload.handed_on()),
        "settled_after": workload.settled_after,
        "params": dict(placed_case(suite, case, site).params),
    }
