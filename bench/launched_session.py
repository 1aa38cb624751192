"""A run of ranks that torchrun, srun or mpirun started: every rank is here, rank 0 keeps the store."""

from __future__ import annotations

import os
import threading
import time
import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from bench.errors import BenchError, LaunchError, UsageError
from bench.launch.connect import connect, disconnect
from bench.launch.diagnosis import one_line
from bench.launch.launchers import Launched, require_world
from bench.launch.site import with_hardware
from bench.launch.stacks import allow_tracing
from bench.launch.watch import Watch, block_signals
from bench.measure.clock import boot_id
from bench.measure.group import RankGroup
from bench.measure.progress import Progress
from bench.measure.runner import run_case, unmeasured_rows
from bench.session import (
    Listener,
    Outcome,
    choose_device,
    jobs_left,
    new_record,
    patience_for,
    reopen,
    rotation,
    sampling_for,
)
from bench.store.attachments import save_stacks
from bench.store.writer import RunWriter
from bench.suite import Context, Scope, Site
from bench.sweep import Job, Request, make_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch.distributed import Store

    from bench.launch.site import Device
    from bench.launch.supervisor import Failure
    from bench.measure.sampling import Sampling
    from bench.store.row import Row

RENDEZVOUS_TIMEOUT_S = 120


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
    block_signals()
    allow_tracing()
    rendezvous = _meet(launched)
    device = choose_device(request)
    group = connect(_first_site(launched, device, request), rendezvous)
    try:
        site = _place(group, launched, device, request.seed)
        opening, writer = _open(group, site, replace(request, ranks=(launched.world,)), store, command, resume)
        keeper = _Keeper(site, store, listener, opening, writer)
        progress = Progress()
        connection = rendezvous.clone()  # type: ignore[attr-defined]  # missing from torch's stubs
        watch = Watch(connection, site.rank, site.world, progress, patience_for(opening.request), keeper.fail)
        watch.start()
        _measure_all(keeper, Context(site, group), sampling_for(opening.request), progress, watch)
        watch.stop()
        return keeper.finish()
    finally:
        disconnect(group)


class _Keeper:
    """Rank 0's store and listener; the other ranks' keeps nothing. It knows the jobs on every rank.

    Args:
        opening: what rank 0 opened; on the other ranks, a copy of it without the writer.
    """

    def __init__(
        self, site: Site, store: Path, listener: Listener, opening: _Opening, writer: RunWriter | None
    ) -> None:
        self._site, self._store, self._listener, self._writer = site, store, listener, writer
        self._lock = threading.Lock()
        jobs = {(job.suite_name, job.case.id): job for job in make_sweep(opening.request)}
        self.jobs = [jobs[key] for key in opening.job_keys]
        self._current = self.jobs[0] if self.jobs else None
        self._began = time.monotonic()
        self._outcome = Outcome(opening.run_id, cases_left=len(self.jobs))
        if writer:
            listener.started(opening.run_id, self.jobs, opening.resumed)

    def began(self, job: Job) -> None:
        """A job is about to be measured."""
        self._current, self._began = job, time.monotonic()
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
                job = self._current
                rows = unmeasured_rows(job.suite, job.case, self._site, failure.status, reason)
                self._writer.append(rows)
                self._listener.case_ended(job, rows, time.monotonic() - self._began)
                self._listener.note(reason)
            self._writer.seal()
            self._listener.note(f"finish it with --resume {self._outcome.run_id}")

    def finish(self) -> Outcome:
        """Seal the run; the outcome has rows on rank 0 alone."""
        if self._writer:
            with self._lock:
                self._writer.seal()
        return self._outcome


@dataclass(frozen=True)
class _Opening:
    """What every rank must know of the run that rank 0 opened."""

    run_id: str
    request: Request
    job_keys: list[tuple[str, str]]
    resumed: int


def _open(
    group: RankGroup, site: Site, request: Request, store: Path, command: Sequence[str], resume: str | None
) -> tuple[_Opening, RunWriter | None]:
    """Open the run on rank 0 and tell all ranks; an error there is raised on all of them alike."""
    writer: RunWriter | None = None
    opened: _Opening | BenchError | None = None
    if site.rank == 0:
        try:
            writer, opened = _open_writer(site, request, store, command, resume)
        except BenchError as error:
            opened = error
    opened = group.broadcast(opened)
    if isinstance(opened, BenchError):
        raise opened
    assert opened is not None
    return opened, writer


def _open_writer(
    site: Site, request: Request, store: Path, command: Sequence[str], resume: str | None
) -> tuple[RunWriter, _Opening]:
    if resume is None:
        record = new_record(request, command)
        jobs = make_sweep(request, start_at=rotation(record.run_id))
        return RunWriter(store, record), _Opening(record.run_id, request, [_key(job) for job in jobs], resumed=0)
    writer = reopen(resume, store)
    request = Request.from_dict(writer.record.plan)
    if request.ranks != (site.world,):
        raise UsageError(f"run {writer.record.run_id} was of {request.ranks} ranks, this is a world of {site.world}")
    jobs = make_sweep(request)
    alone = _alone(site)
    left = jobs_left(jobs, writer.record.run_id, store, lambda job: site if job.suite.distributed else alone)
    keys = [_key(job) for job in left]
    return writer, _Opening(writer.record.run_id, request, keys, resumed=len(jobs) - len(left))


def _key(job: Job) -> tuple[str, str]:
    return job.suite_name, job.case.id


def _alone(site: Site) -> Site:
    """Rank 0's site for single-process cases."""
    return with_hardware(replace(site, world=1, ranks_per_node=1, nodes=1, scope="process"))


def _measure_all(keeper: _Keeper, context: Context, sampling: Sampling, progress: Progress, watch: Watch) -> None:
    """Every job in order, on all ranks; a single-process case runs on rank 0 while the others wait."""
    alone = Context(_alone(context.site), RankGroup())
    for job in keeper.jobs:
        keeper.began(job)
        try:
            if job.suite.distributed:
                keeper.keep(job, run_case(job.suite, job.case, context, sampling, progress))
            else:
                if context.site.rank == 0:
                    keeper.keep(job, run_case(job.suite, job.case, alone, sampling, progress))
                context.group.barrier()
        except Exception as error:
            watch.report(one_line(error), traceback.format_exc())


def _meet(launched: Launched) -> Store:
    """The ranks' rendezvous over TCP: the launcher's own where it serves one, else rank 0's."""
    from torch.distributed import PrefixStore, TCPStore

    if launched.master_address in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        store = TCPStore(
            launched.master_address,
            launched.master_port,
            launched.world,
            is_master=launched.rank == 0 and not launched.agent_store,
            timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_S),
        )
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise LaunchError(
            f"rank {launched.rank} cannot meet the others at {launched.master_address}:{launched.master_port}"
            f" ({text}); if the port is taken, set MASTER_PORT to a free one"
        ) from error
    return PrefixStore(f"bench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _first_site(launched: Launched, device: Device, request: Request) -> Site:
    """What must be known to connect; who shares a host with whom is found out after that."""
    return Site(
        rank=launched.rank,
        world=launched.world,
        local_rank=launched.local_rank,
        device=device,
        seed=request.seed,
    )


def _place(group: RankGroup, launched: Launched, device: Device, seed: int) -> Site:
    """This rank's site, from who really shares a host: launchers' own counts may be of another job step."""
    hosts = group.gather_objects(boot_id())
    nodes = list(dict.fromkeys(hosts))
    mine = hosts[group.rank]
    scope: Scope = "process" if group.world == 1 else "cluster" if len(nodes) > 1 else "loopback"
    if scope == "loopback" and device == "cuda":
        scope = "node"
    site = Site(
        rank=group.rank,
        world=group.world,
        local_rank=hosts[: group.rank].count(mine),
        ranks_per_node=max(hosts.count(host) for host in nodes),
        node=nodes.index(mine),
        nodes=len(nodes),
        device=device,
        scope=scope,
        seed=seed,
    )
    return with_hardware(site)
