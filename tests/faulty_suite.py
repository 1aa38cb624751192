"""A multi-rank suite whose ranks fail on demand, for the tests of supervision and recovery."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.definitions import LATENCY, Work
from bench.suite import Axis, Case, Context, Metric, Suite, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit0": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(0),
    "hang": lambda: time.sleep(3600),
    "hang_third": lambda: None,
    "raise": lambda: _raise(),
    "spawn_and_kill": lambda: _spawn_and_kill(),
}


def _raise() -> None:
    raise ValueError("boom\nover two lines")


def _spawn_and_kill() -> None:
    """Leave a child behind, as a data loader would, and die."""
    if os.fork() == 0:
        time.sleep(3600)
    os.kill(os.getpid(), signal.SIGKILL)


HANGS_NOW = "hangs-now"
"""File that ``hang_third`` leaves in the working folder when it hangs."""


class FaultyWorkload(Workload):
    """An all-reduce in which the victim fails at its third iteration, or in the phase that is asked for.

    ``hang_third`` hangs in the third case that the process measures, whatever the order of the cases.
    """

    work = Work()

    def __init__(self, case: Case, context: Context) -> None:
        self._fault = FAULTS[case["fault"]] if context.site.rank == case["victim"] else FAULTS["none"]
        self._phase = case["phase"]
        self._group = context.group
        self._iterations = 0
        self._fail_in("setup")
        context.scratch["cases"] = context.scratch.get("cases", 0) + 1
        if case["fault"] == "hang_third" and context.scratch["cases"] == 3 and context.site.rank == case["victim"]:
            Path(HANGS_NOW).touch()
            time.sleep(3600)

    def run(self) -> None:
        self._iterations += 1
        if self._iterations == 3:
            self._fail_in("measure")
        if self._group.world > 1:
            import torch
            import torch.distributed as dist

            dist.all_reduce(torch.ones(4), group=self._group.data)

    def check(self) -> int:
        self._fail_in("check")
        return 0

    def _fail_in(self, phase: str) -> None:
        if phase == self._phase:
            self._fault()


class FaultySuite(Suite):
    """Cases are numbered, so that a fault can be put first, in the middle or last (``at``)."""

    name = "faulty"
    summary = "ranks that fail on demand"
    method_version = 1
    metrics = (Metric("latency", LATENCY),)
    axes = (
        Axis("ranks", "int", "ranks", minimum=1),
        Axis("number", "int", "number of the case", minimum=0),
        Axis("fault", "str", "how the victim fails", tuple(FAULTS)),
        Axis("phase", "str", "where it fails", ("setup", "measure", "check")),
        Axis("victim", "int", "rank that fails", minimum=0),
        Axis("at", "int", "number of the case that fails; -1 for all", minimum=-1),
    )
    presets = {
        preset: {
            "ranks": [2],
            "number": [0, 1, 2],
            "fault": ["none"],
            "phase": ["measure"],
            "victim": [1],
            "at": [-1],
        }
        for preset in ("quick", "standard", "full")
    }
    distributed = True

    def setup(self, case: Case, context: Context) -> Workload:
        if case["at"] not in (-1, case["number"]):
            case = Case({**case.params, "fault": "none"})
        return FaultyWorkload(case, context)


class SoloSuite(FaultySuite):
    """The same in one process."""

    name = "faulty_solo"
    axes = FaultySuite.axes[1:]
    distributed = False
