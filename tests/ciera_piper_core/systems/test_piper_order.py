"""All ranks of a pipeline make the same calls in the same order, whatever the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.pipeline.schedules import SCHEDULES
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.piper_ciera import PiperCieraSystem
from ciera_piper_core.training.collective_log import logging_collectives, order_differences
from tests.ciera_piper_core.systems.pipelined_family import all_ranks, batch, built, recipe
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

STEPS = 2


def test_calls_agree_between_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks = all_ranks()
        for kind in (PiperSystem, PiperCieraSystem):
            for schedule in SCHEDULES:
                system = built(kind, recipe(), ranks, pp=2, ep=2, schedule=schedule)
                with logging_collectives() as log:
                    for step in range(STEPS):
                        system.accumulate(batch(step))
                        system.update()
                    system.evaluate(batch(STEPS))
                assert log.calls
                assert order_differences(log, ranks.group) == [], (kind.name, schedule)
                system.close()

    run_world(4, body, tmp_path)
