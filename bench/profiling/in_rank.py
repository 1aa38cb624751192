"""What a rank does when a case is profiled: set up, warm up, iterate under the tool, check."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure.clock import clock_errors_ns, clock_offsets_ns
from bench.measure.runner import counted, memory_reason
from bench.measure.sampling import sample
from bench.profiling.tools import WRAPPING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure.progress import Progress
    from bench.measure.sampling import Sampling
    from bench.profiling.settings import ProfileSettings
    from bench.suite import Case, Context, Suite, Workload

WARM_SAMPLES = 10
WARM_TIME_NS = 1_000_000_000


def profile_case(
    suite: Suite, case: Case, context: Context, sampling: Sampling, settings: ProfileSettings, progress: Progress
) -> list[dict[str, Any]]:
    """Profile one case (collective); a record a rank, by rank, the same on all.

    A record has ``rank``, ``files`` (names within the settings' folder), ``wrong`` (elements),
    ``skipped`` and ``problem`` (texts, empty if all is well), ``remark``, and with torch ``anchors``,
    ``offset_ns`` and ``error_ns`` of the rank's clock.

    Raises:
        Exception: whatever the suite raises; the group is then in an unknown state.
    """
    progress.phase, progress.iteration, progress.ticks = "setup", 0, 0
    site, group = context.site, context.group
    record: dict[str, Any] = {"rank": site.rank, "files": [], "wrong": 0, "skipped": "", "problem": "", "remark": ""}
    reasons = group.gather_objects(suite.skip_reason(case, site) or memory_reason(suite, case, site) or "")
    if any(reasons):
        record["skipped"] = next(reason for reason in reasons if reason)
        return group.gather_objects(record)
    workload = suite.setup(case, replace(context, alive=progress.tick))
    try:
        progress.phase = "measure"
        prepare = counted(workload.prepare, progress)
        warm = replace(sampling, min_time_ns=1, max_time_ns=WARM_TIME_NS, min_samples=1, max_samples=WARM_SAMPLES)
        timing = sample(workload.run, prepare, warm, group, site.device)
        iteration_s = float(np.median(timing.seconds.max(axis=0)))
        record |= _profiled(workload, prepare, context, settings, iteration_s)
        progress.phase = "check"
        record["wrong"] = int(workload.check() or 0)
    finally:
        workload.close()
    progress.phase = "done"
    return group.gather_objects(record)


def _profiled(
    workload: Workload, prepare: Callable[[], None], context: Context, settings: ProfileSettings, iteration_s: float
) -> dict[str, Any]:
    group, device, folder = context.group, context.site.device, Path(settings.folder)

    def iterate() -> None:
        prepare()
        workload.run()

    if settings.tool == "py-spy":
        from bench.profiling.stacks import record_stacks

        files, told = record_stacks(iterate, group, folder, settings.seconds, iteration_s)
        return {"files": files, "remark" if files else "problem": told}
    if settings.tool in WRAPPING:
        group.barrier()
        _iterate_for_tool(iterate, device, settings.iterations)
        return {}
    from bench.profiling.torch_trace import trace_iterations

    path = folder / f"rank{group.rank}.json.gz"
    anchors = trace_iterations(workload, prepare, group, device, settings.iterations, path)
    offsets, errors = clock_offsets_ns(group), clock_errors_ns(group)
    return {
        "files": [path.name],
        "anchors": [asdict(anchor) for anchor in anchors],
        "offset_ns": float(offsets[group.rank]),
        "error_ns": float(errors[group.rank]),
    }


def _iterate_for_tool(iterate: Callable[[], None], device: str, iterations: int) -> None:
    """The iterations that a tool around this process records; on a GPU it waits for the profiler's start."""
    if device != "cuda":
        for _ in range(iterations):
            iterate()
        return
    import torch

    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    for _ in range(iterations):
        iterate()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
