"""Profiles on the ranks that torchrun, srun or mpirun started: every rank is here, rank 0 gathers the files."""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError, UsageError
from bench.launch.connect import connect, disconnect, with_nccl
from bench.launch.diagnosis import one_line
from bench.launch.launchers import Launched, require_world
from bench.launch.rendezvous import meet, place
from bench.launch.stacks import allow_tracing
from bench.launch.watch import Watch, divert_signals
from bench.launched_session import agree_on_device, alone_site, from_rank_0
from bench.measure.group import RankGroup
from bench.measure.progress import Progress
from bench.profiling.in_rank import profile_case
from bench.profiling.session import (
    CaseProfile,
    ProfileListener,
    Profiles,
    finish_case,
    folders_of,
    make_case_folder,
    refuse_too_many,
    save_case_stacks,
)
from bench.profiling.tools import WRAPPING, require_tool
from bench.registry import load_suite
from bench.session import patience_for, sampling_for
from bench.suite import Context
from bench.sweep import make_sweep

if TYPE_CHECKING:
    from bench.launch.supervisor import Failure
    from bench.profiling.settings import ProfileSettings
    from bench.sweep import Job, Request


def profile_launched(
    launched: Launched, request: Request, settings: ProfileSettings, listener: ProfileListener
) -> Profiles:
    """Profile every case of the request; called on every rank. Rank 0 alone has the files in its answer.

    The settings' folder must be one that all ranks share.

    Raises:
        UsageError: another world than asked for, a lab, or a tool that wraps the ranks' commands.
        LaunchError: the ranks cannot meet.
    """
    if request.lab:
        raise UsageError(f"--lab starts its own ranks; do not start it under {launched.launcher}")
    if settings.tool in WRAPPING:
        raise UsageError(
            f"--with {settings.tool}: {launched.launcher} starts the ranks, so start them below the tool yourself:"
            f" {launched.launcher} ... {settings.tool} ... bench run"
        )
    require_world(launched, request.ranks)
    signals = divert_signals()
    allow_tracing()
    rendezvous = meet(launched)
    group = connect(launched.rank, launched.world, rendezvous)
    progress, keeper = Progress(), _Keeper(listener)
    connection = rendezvous.clone()  # type: ignore[attr-defined]  # missing from torch's stubs
    watch = Watch(connection, launched.rank, launched.world, progress, keeper.fail, signals)
    watch.patience = patience_for(request)
    watch.start()
    try:
        device = agree_on_device(group, request)
        require_tool(settings.tool, device)
        if device == "cuda":
            group = with_nccl(group, launched.local_rank)
        context = Context(place(group, device, request.seed), group)
        jobs = _jobs(request, launched.world)
        refuse_too_many(jobs)
        # Rank 0's: a folder that is named after the time has another name on every rank.
        root = Path(group.broadcast(settings.folder))
        for number, (job, folder) in enumerate(zip(jobs, folders_of(jobs, root), strict=True), start=1):
            _share_folder(group, folder)
            if group.rank == 0:
                keeper.began(number, len(jobs), job, folder)
            records = _profile(job, context, request, replace(settings, folder=str(folder)), progress)
            if group.rank == 0:
                keeper.ended(records, replace(settings, folder=str(folder)))
            group.barrier()
    except BenchError:
        # Raised on all ranks alike, so they can leave together.
        watch.stop()
        disconnect(group)
        raise
    except Exception as error:
        watch.report(one_line(error), traceback.format_exc())
    watch.stop()
    disconnect(group)
    return keeper.profiles if launched.rank == 0 else Profiles([CaseProfile("", "")])


def _jobs(request: Request, world: int) -> list[Job]:
    """The cases on the launcher's ranks; suites of one process have no ranks to set."""
    distributed = any(load_suite(name).distributed for name in request.suites)
    return make_sweep(replace(request, ranks=(world,)) if distributed else request)


class _Keeper:
    """What rank 0 knows of the cases; told of a lost rank by the watching thread."""

    def __init__(self, listener: ProfileListener) -> None:
        self.profiles = Profiles()
        self._listener = listener
        self._lock = threading.Lock()
        self._current: tuple[Job, Path] | None = None
        self._began = 0.0

    def began(self, number: int, of: int, job: Job, folder: Path) -> None:
        """A case is about to be profiled."""
        self._current, self._began = (job, folder), time.monotonic()
        self._listener.case_started(number, of, job)

    def ended(self, records: list[dict[str, Any]], settings: ProfileSettings) -> None:
        """The ranks have done their part of it."""
        with self._lock:
            assert self._current is not None
            job, folder = self._current
            result = finish_case(CaseProfile(job.suite_name, job.case.id), records, settings, folder)
            self.profiles.cases.append(result)
            self._listener.case_ended(result, time.monotonic() - self._began)

    def fail(self, failure: Failure | None) -> None:
        """The group is lost, and this process ends after it: name the rank, and keep the stacks."""
        if self._current is None or failure is None:
            return
        with self._lock:
            job, folder = self._current
            result = CaseProfile(job.suite_name, job.case.id, failure.status, failure.reason)
            self._listener.case_ended(result, time.monotonic() - self._began)
            if failure.details:
                self._listener.note(f"  stacks in {save_case_stacks(folder, failure.details)}")


def _share_folder(group: RankGroup, folder: Path) -> None:
    """Make a case's folder on rank 0, and see that all ranks find it (collective).

    Raises:
        StoreError: it cannot be made.
        UsageError: a rank does not see it.
    """
    from_rank_0(group, lambda: make_case_folder(folder))
    seen = group.gather_objects(folder.is_dir())
    if not all(seen):
        raise UsageError(
            f"rank {seen.index(False)} does not see {folder}; name a folder that all hosts share with --output"
        )


def _profile(
    job: Job, context: Context, request: Request, settings: ProfileSettings, progress: Progress
) -> list[dict[str, Any]]:
    """Profile a case on all ranks; a single-process one on rank 0, while the others wait."""
    sampling = sampling_for(request)
    if job.suite.distributed:
        return profile_case(job.suite, job.case, context, sampling, settings, progress)
    if context.site.rank:
        return []
    alone = Context(alone_site(context.site), RankGroup())
    return profile_case(job.suite, job.case, alone, sampling, settings, progress)
