"""A run of ranks that torchrun, srun or mpirun started: every rank is here, rank 0 keeps the store."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from bench.environment import fingerprint, identity_digest
from bench.errors import BenchError, UsageError
from bench.launch.connect import connect, disconnect, with_nccl
from bench.launch.diagnosis import one_line
from bench.launch.launchers import LAUNCHER_VARIABLES, Launched, require_world
from bench.launch.rendezvous import meet, place
from bench.launch.site import with_hardware
from bench.launch.stacks import allow_tracing
from bench.launch.watch import Watch, divert_signals
from bench.measure.group import RankGroup
from bench.measure.progress import Progress
from bench.measure.rounds import is_skipped, pool
from bench.measure.runner import run_case, unmeasured_rows
from bench.registry import load_suite
from bench.session import (
    Listener,
    Outcome,
    choose_device,
    jobs_left,
    new_record,
    patience_for,
    reopen,
    rotation,
    rounds_for,
    sampling_for,
)
from bench.store.attachments import save_stacks
from bench.store.reader import Store
from bench.store.writer import RunWriter
from bench.suite import Context, Site
from bench.sweep import Job, Request, make_sweep, rotated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

    from bench.launch.site import Device
    from bench.launch.supervisor import Failure
    from bench.store.row import Row

T = TypeVar("T")


def execute_launched(
    launched: Launched,
    request: Request,
    store: Path,
    listener: Listener,
    command: Sequence[str],
    resume: str | None = None,
) -> Outcome:
    """Measure on the ranks that the launcher started; called on every rank.

    Args:
        resume: run to finish, in place of a new one; ``request`` is then taken from it.

    Raises:
        UsageError: another world than asked for, or a lab: that is for one machine alone.
        LaunchError: the ranks cannot meet.
    """
    if request.lab:
        raise UsageError(f"--lab starts its own ranks; do not start it under {launched.launcher}")
    require_world(launched, request.ranks)
    # Read before this program sets variables of its own, and without what the launcher sets.
    machine = dict(fingerprint(environ={k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}))
    signals = divert_signals()
    allow_tracing()
    rendezvous = meet(launched)
    group = connect(launched.rank, launched.world, rendezvous)
    progress = Progress()
    keeper = _Keeper(store, listener)
    connection = rendezvous.clone()  # type: ignore[attr-defined]  # missing from torch's stubs
    watch = Watch(connection, launched.rank, launched.world, progress, keeper.fail, signals)
    watch.start()
    try:
        machine = _with_nodes(machine, group)
        placed = _placed(request, launched.world)
        request = from_rank_0(group, lambda: keeper.open(placed, command, resume, machine, launched.world))
        watch.patience = patience_for(request)
        device = agree_on_device(group, request)
        if device == "cuda":
            group = with_nccl(group, launched.local_rank)
        site = place(group, device, request.seed)
        jobs = {_key(job): job for job in make_sweep(request)}
        keys = from_rank_0(group, lambda: keeper.choose_jobs(list(jobs.values()), site, resume is not None))
        _measure_all([jobs[key] for key in keys], keeper, Context(site, group), request, progress)
    except BenchError:
        # Raised on all ranks alike, so they can leave together.
        watch.stop()
        disconnect(group)
        raise
    except Exception as error:
        watch.report(one_line(error), traceback.format_exc())
    watch.stop()
    outcome = keeper.finish()
    disconnect(group)
    return outcome


class _Keeper:
    """Rank 0's store and listener; on the other ranks it keeps nothing."""

    def __init__(self, store: Path, listener: Listener) -> None:
        self._store, self._listener = store, listener
        self._lock = threading.Lock()
        self._writer: RunWriter | None = None
        self._outcome = Outcome("")
        self._current: tuple[Job, Site] | None = None
        self._began = time.monotonic()

    def open(
        self, request: Request, command: Sequence[str], resume: str | None, machine: dict[str, Any], world: int
    ) -> Request:
        """Open the run, on rank 0; the request is the stored one where an earlier run goes on."""
        if resume is None:
            self._writer = RunWriter(self._store, new_record(request, command, len(make_sweep(request)), machine))
        else:
            self._writer = reopen(resume, self._store, machine)
            request = Request.from_dict(self._writer.record.plan)
            if request != _placed(request, world):
                raise UsageError(
                    f"run {self._writer.record.run_id} was not of {world} ranks under a launcher; resume it as it began"
                )
        self._outcome = Outcome(self._writer.record.run_id)
        return request

    def choose_jobs(self, jobs: list[Job], site: Site, resumed: bool) -> list[tuple[str, str]]:
        """The keys of the jobs to measure, in order, on rank 0."""
        assert self._writer is not None
        run_id, left = self._writer.record.run_id, jobs
        if resumed:
            alone = alone_site(site)
            left = jobs_left(jobs, run_id, self._store, lambda job: site if job.suite.distributed else alone)
            self._outcome.rows += Store(self._store).rows(run_ids=[run_id])
        else:
            left = rotated(jobs, rotation(run_id))
        self._outcome.cases_left = len(left)
        self._listener.started(run_id, left, len(jobs) - len(left))
        return [_key(job) for job in left]

    def began(self, job: Job, site: Site) -> None:
        """A job is about to be measured at a site."""
        self._current, self._began = (job, site), time.monotonic()
        if self._writer:
            self._listener.case_started(job)

    def keep(self, job: Job, rows: list[Row]) -> None:
        """Store the rows of a case, on rank 0."""
        if self._writer is None:
            return
        with self._lock:
            self._writer.append(rows)
            self._outcome.rows += rows
            self._outcome.cases_left -= 1
            self._listener.case_ended(job, rows, time.monotonic() - self._began)

    def fail(self, failure: Failure | None) -> None:
        """Called from the watching thread of rank 0: the group is lost, so keep what there is."""
        if self._writer is None:
            return
        with self._lock:
            if failure and self._current:
                path = save_stacks(self._store, self._outcome.run_id, failure.details)
                reason = f"{failure.reason}; stacks in {path}"
                job, site = self._current
                rows = unmeasured_rows(job.suite, job.case, site, failure.status, reason)
                self._writer.append(rows)
                self._listener.case_ended(job, rows, time.monotonic() - self._began)
            self._writer.seal()
            self._listener.note(f"finish it with --resume {self._outcome.run_id}")

    def finish(self) -> Outcome:
        """Seal the run; the outcome has rows on rank 0 alone."""
        if self._writer:
            with self._lock:
                self._writer.seal()
        return self._outcome


def _placed(request: Request, world: int) -> Request:
    """The request on the launcher's ranks; suites of one process have no ranks to set."""
    distributed = any(load_suite(name).distributed for name in request.suites)
    return replace(request, ranks=(world,)) if distributed else request


def from_rank_0(group: RankGroup, action: Callable[[], T]) -> T:
    """What ``action`` returns on rank 0, on all ranks; an error that a user can meet is raised on all alike."""
    result: T | BenchError | None = None
    if group.rank == 0:
        try:
            result = action()
        except BenchError as error:
            result = error
    shared = group.broadcast(result)
    if isinstance(shared, BenchError):
        raise shared
    return shared  # type: ignore[no-any-return]


def agree_on_device(group: RankGroup, request: Request) -> Device:
    """The device of all ranks (collective).

    Raises:
        UsageError: a rank lacks what was asked for, or auto means another device on some hosts.
    """
    mine: Device | UsageError
    try:
        mine = choose_device(request)
    except UsageError as error:
        mine = error
    everyone = group.gather_objects(mine)
    for rank, answer in enumerate(everyone):
        if isinstance(answer, UsageError):
            raise UsageError(f"rank {rank}: {answer}")
        if answer != everyone[0]:
            raise UsageError(f"rank 0 would use {everyone[0]} and rank {rank} {answer}; choose one with --device")
    return everyone[0]  # type: ignore[no-any-return]


def _with_nodes(machine: dict[str, Any], group: RankGroup) -> dict[str, Any]:
    """The fingerprint of this host, and which hosts have which identity (collective)."""
    hosts: dict[str, list[str]] = {}
    for digest, host in group.gather_objects((identity_digest(machine), socket.gethostname())):
        if host not in hosts.setdefault(digest, []):
            hosts[digest].append(host)
    return {**machine, "nodes": hosts}


def _key(job: Job) -> tuple[str, str]:
    return job.suite_name, job.case.id


def alone_site(site: Site) -> Site:
    """Rank 0's site for single-process cases."""
    return with_hardware(replace(site, world=1, ranks_per_node=1, nodes=1, scope="process"))


def _measure_all(jobs: list[Job], keeper: _Keeper, context: Context, request: Request, progress: Progress) -> None:
    """Every job in order, on all ranks; a single-process case runs on rank 0 while the others wait.

    The launcher starts processes once, so all rounds are theirs; each sets the case up anew.
    """
    alone = Context(alone_site(context.site), RankGroup())
    rounds, sampling = rounds_for(request), sampling_for(request)

    def measure(job: Job, where: Context) -> list[Row]:
        measured = [run_case(job.suite, job.case, where, sampling, progress)]
        while len(measured) < rounds and not is_skipped(measured[0]):
            measured.append(run_case(job.suite, job.case, where, sampling, progress))
        return pool(measured)

    for job in jobs:
        if job.suite.distributed:
            keeper.began(job, context.site)
            keeper.keep(job, measure(job, context))
        else:
            keeper.began(job, alone.site)
            if context.site.rank == 0:
                keeper.keep(job, measure(job, alone))
            context.group.barrier()
