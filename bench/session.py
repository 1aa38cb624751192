"""A run from start to seal: measures the jobs of a sweep under supervision and stores every outcome."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from bench.definitions import format_bytes
from bench.environment import fingerprint, identity_differences
from bench.errors import EXIT_NOT_MEASURED, EXIT_OK, UsageError
from bench.hardware import available_memory_bytes, usable_cores
from bench.launch.lab import Lab, LabShape, remove_leftovers
from bench.launch.site import Device, lab_site, local_site, with_hardware
from bench.launch.supervisor import Failure, Patience, RankProcesses
from bench.measure.rounds import ROUNDS, is_skipped, pool
from bench.measure.runner import unmeasured_rows
from bench.measure.sampling import Sampling
from bench.store.attachments import save_stacks
from bench.store.row import Row, RunRecord, new_run_id, utc_now
from bench.store.writer import RunWriter
from bench.sweep import Job, Request, make_sweep, rotated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bench.suite import Site

RANK_MEMORY_BYTES = 256 << 20
"""What an idle worker with torch loaded takes for itself, measured on Linux x86-64."""
START_ATTEMPTS = 2
"""A group that fails to start so often in a row will not start for the next case either."""


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedRunError(BaseException):
    """An ending signal, made an exception so that everything is cleaned up."""


class Listener:
    """Told what happens during a run; the command line shows it. Every method does nothing here."""

    def started(self, run_id: str, jobs: Sequence[Job], resumed: int) -> None:
        """The run's file is open; ``resumed`` of its jobs were measured before."""

    def case_started(self, job: Job) -> None:
        """A case is about to be measured."""

    def case_ended(self, job: Job, rows: Sequence[Row], seconds: float) -> None:
        """The rows of a case are safe on disk."""

    def note(self, text: str) -> None:
        """Something that the user should know, in one line."""


@dataclass
class Outcome:
    """What became of a run."""

    run_id: str
    rows: list[Row] = field(default_factory=list)
    interrupted: bool = False
    cases_left: int = 0

    @property
    def exit_code(self) -> int:
        """0 if every case has a number, or a reason why this machine is not meant for it, and one has a number."""
        statuses = {row.status for row in self.rows}
        bad = statuses & {"failed", "timeout", "invalid"} or statuses == {"skipped"}
        return EXIT_NOT_MEASURED if bad or self.interrupted else EXIT_OK


def execute(request: Request, store: Path, listener: Listener, command: Sequence[str]) -> Outcome:
    """Measure everything that was asked for, in a new run.

    Raises:
        UsageError: the request cannot be met here; nothing was started.
        StoreError: the store cannot be written; what was stored before is kept.
    """
    shape = LabShape.parse(request.lab) if request.lab else None
    jobs = make_sweep(request, shape.world if shape else None)
    refuse_impossible_worlds(jobs)
    choose_device(request)
    record = new_record(request, command, len(jobs))
    jobs = rotated(jobs, rotation(record.run_id))
    with RunWriter(store, record) as writer:
        return _measure(request, shape, jobs, store, writer, listener, resumed=0)


def resume(run: str, store: Path, listener: Listener) -> Outcome:
    """Measure the cases of an earlier run that have no row yet, into that run.

    Raises:
        UsageError: no such run, or it was measured on another machine.
    """
    with reopen(run, store) as writer:
        request = Request.from_dict(writer.record.plan)
        shape = LabShape.parse(request.lab) if request.lab else None
        jobs = make_sweep(request, shape.world if shape else None)
        device = choose_device(request)
        sites = {world: _sites(world, shape, device, request.seed)[0] for world in {job.world for job in jobs}}
        left = jobs_left(jobs, writer.record.run_id, store, lambda job: sites[job.world])
        refuse_impossible_worlds(left)
        return _measure(request, shape, left, store, writer, listener, resumed=len(jobs) - len(left))


def new_record(
    request: Request, command: Sequence[str], cases: int, machine: dict[str, Any] | None = None
) -> RunRecord:
    """The record of a run of so many cases that starts now; ``machine`` is its fingerprint if taken before."""
    return RunRecord(
        run_id=new_run_id(),
        started_at=utc_now(),
        command=list(command),
        suites=list(request.suites),
        preset=request.preset,
        seed=request.seed,
        lab=request.lab,
        fingerprint=machine or dict(fingerprint()),
        plan=request.to_dict(),
        cases=cases,
    )


def rotation(run_id: str) -> int:
    """Where the order of the cases starts: any number will do that differs from run to run."""
    return int(run_id[-8:], 16)


def reopen(run: str, store: Path, machine: dict[str, Any] | None = None) -> RunWriter:
    """The writer of an earlier run, by its id, a unique prefix of it, or ``latest``.

    Raises:
        UsageError: no such run, or it was measured on another machine.
    """
    from bench.store.reader import Store

    reader = Store(store)
    run_id = reader.resolve(run)
    record = reader.record(run_id)
    differences = identity_differences(record.fingerprint, machine or fingerprint())
    if differences:
        raise UsageError(f"run {run_id} was measured elsewhere ({'; '.join(differences)}); start a new run")
    make_sweep(*_asked(record))
    return RunWriter.reopen(store, run_id)


def _asked(record: RunRecord) -> tuple[Request, int | None]:
    """What a stored run was asked for, and the world of its lab if it had one."""
    request = Request.from_dict(record.plan)
    return request, LabShape.parse(request.lab).world if request.lab else None


def jobs_left(jobs: Sequence[Job], run_id: str, store: Path, site_of: Callable[[Job], Site]) -> list[Job]:
    """Those of the jobs that lack rows in the run; a failed case has its rows, and is not tried again."""
    from bench.store.reader import Store

    rows = Store(store).rows(run_ids=[run_id])
    measured = {(row.suite, row.method_version, row.case, row.metric) for row in rows}

    def is_whole(job: Job) -> bool:
        """A crash in the middle of its write may leave a case with some of its metrics alone."""
        expected = unmeasured_rows(job.suite, job.case, site_of(job), "skipped", "to compare")
        return all((row.suite, row.method_version, row.case, row.metric) in measured for row in expected)

    return [job for job in jobs if not is_whole(job)]


def rounds_for(request: Request) -> int:
    """How many times a request wants each case measured, by other processes each time if that can be had."""
    return ROUNDS[request.preset] if request.rounds is None else request.rounds


def sampling_for(request: Request) -> Sampling:
    """The sampling settings of one round of a request."""
    sampling = Sampling.from_preset(request.preset)
    if request.max_time_s is not None:
        sampling = sampling.with_max_time(request.max_time_s)
    return sampling.of_one_round(rounds_for(request))


def patience_for(request: Request) -> Patience:
    """How long a request lets a group stand still."""
    return Patience() if request.timeout_s is None else Patience.from_timeout(request.timeout_s)


def refuse_impossible_worlds(jobs: Sequence[Job]) -> None:
    """More ranks than this machine's memory can hold are refused before anything starts."""
    world, free = max((job.world for job in jobs), default=1), available_memory_bytes()
    if world > 1 and world * RANK_MEMORY_BYTES > free:
        raise UsageError(
            f"{world} ranks need about {format_bytes(world * RANK_MEMORY_BYTES)} of memory, {format_bytes(free)} are"
            f" free; at most {free // RANK_MEMORY_BYTES} ranks fit on this machine"
        )


def choose_device(request: Request) -> Device:
    """cpu or cuda, as asked for; auto takes cuda where a device answers.

    Raises:
        UsageError: cuda was asked for and there is none.
    """
    from bench.hardware import cuda_device_count

    count = cuda_device_count() if request.device != "cpu" and not request.lab else 0
    if request.device == "cuda" and not count:
        raise UsageError("--device cuda: no CUDA device is visible here; `bench doctor` says what was found")
    return "cuda" if count else "cpu"


def _sites(world: int, shape: LabShape | None, device: Device, seed: int) -> list[Site]:
    """The site of each rank of a group on this machine."""
    in_lab = shape if world > 1 else None
    bare = [lab_site(r, in_lab, seed) if in_lab else local_site(r, world, device, seed) for r in range(world)]
    seen = with_hardware(bare[0])
    return [
        replace(
            site,
            cores=seen.cores,
            last_level_cache_bytes=seen.last_level_cache_bytes,
            peak_tflops=seen.peak_tflops,
        )
        for site in bare
    ]


def _measure(
    request: Request,
    shape: LabShape | None,
    jobs: list[Job],
    store: Path,
    writer: RunWriter,
    listener: Listener,
    resumed: int,
) -> Outcome:
    outcome = Outcome(writer.record.run_id, cases_left=len(jobs))
    if resumed:
        from bench.store.reader import Store

        outcome.rows += Store(store).rows(run_ids=[outcome.run_id])
    listener.started(outcome.run_id, jobs, resumed)
    with _signals_end_the_run():
        try:
            with ExitStack() as stack:
                if shape:
                    for text in remove_leftovers():
                        listener.note(text)
                lab = stack.enter_context(Lab(shape)) if shape else None
                for job, rows, seconds in _supervise(request, shape, lab, jobs, store, outcome.run_id, listener):
                    kept = _append(writer, job, rows)
                    outcome.rows += kept
                    outcome.cases_left -= 1
                    listener.case_ended(job, kept, seconds)
        except InterruptedRunError:
            outcome.interrupted = True
        writer.seal()
    return outcome


def _append(writer: RunWriter, job: Job, rows: list[Row]) -> list[Row]:
    """Store the rows of a case; values that no store can hold make it a failed one."""
    try:
        writer.append(rows)
    except ValueError as error:
        rows = [replace(row, **_failed(f"{job.suite_name} gave what cannot be stored: {error}")) for row in rows]
        writer.append(rows)
    return rows


def _failed(reason: str) -> dict[str, Any]:
    """The fields of a row without a number."""
    none: dict[str, Any] = dict.fromkeys(("value", "rank_min", "rank_median", "rank_max", "slowest_rank", "wrong"))
    return {**none, "n": 0, "samples": [], "status": "failed", "reason": reason}


def _supervise(
    request: Request,
    shape: LabShape | None,
    lab: Lab | None,
    jobs: list[Job],
    store: Path,
    run_id: str,
    listener: Listener,
) -> Iterator[tuple[Job, list[Row], float]]:
    """Each job with its rows, measured or not; groups of ranks start when needed and after each failure."""
    device = choose_device(request)
    by_world: dict[int, list[Job]] = {}
    for job in jobs:
        by_world.setdefault(job.world, []).append(job)
    for world, group_jobs in by_world.items():
        sites = _sites(world, shape, device, request.seed)
        too_few_gpus = _too_few_gpus(sites[0])
        with _Groups(sites, request, lab if world > 1 else None, listener) as groups:
            for job in group_jobs:
                listener.case_started(job)
                began = time.monotonic()
                if too_few_gpus:
                    yield job, unmeasured_rows(job.suite, job.case, sites[0], "skipped", too_few_gpus), 0.0
                    continue
                rows = groups.measure(job)
                if isinstance(rows, Failure):
                    reason = rows.reason
                    if rows.details:
                        reason += f"; stacks in {save_stacks(store, run_id, rows.details)}"
                    rows = unmeasured_rows(job.suite, job.case, sites[0], rows.status, reason)
                yield job, rows, time.monotonic() - began


class _Groups:
    """The groups of ranks that measure the cases of one world, a round each, all alive until the last case.

    Where memory does not hold so many, those that it holds take more rounds than one.
    """

    def __init__(self, sites: list[Site], request: Request, lab: Lab | None, listener: Listener) -> None:
        world = len(sites)
        self._rounds = rounds_for(request)
        self._sampling = sampling_for(request)
        self._listener = listener
        fit = max(1, available_memory_bytes() // (2 * world * RANK_MEMORY_BYTES))
        if fit < self._rounds:
            listener.note(
                f"memory holds {fit} group(s) of {world} rank(s), so not every round has processes of its own"
            )
        self._groups = [
            RankProcesses(sites, patience_for(request), lab, _threads(world)) for _ in range(min(fit, self._rounds))
        ]

    def measure(self, job: Job) -> list[Row] | Failure:
        """The rows of a job, of all rounds together. What fails or is skipped is not tried again."""
        measured: list[list[Row]] = []
        for number in range(self._rounds):
            rows = self._measure_once(self._groups[number % len(self._groups)], job)
            if isinstance(rows, Failure):
                return rows
            measured.append(rows)
            if is_skipped(rows):
                break
        return pool(measured)

    def _measure_once(self, ranks: RankProcesses, job: Job) -> list[Row] | Failure:
        lost = ranks.lost_between_cases()
        if lost:
            self._listener.note(f"{lost} between two cases; the group starts again")
            ranks.kill()
        if not ranks.running:
            if ranks.failed_starts >= START_ATTEMPTS:
                return Failure("failed", f"no group of {job.world} rank(s) starts here (tried {START_ATTEMPTS} times)")
            failure = ranks.start()
            if failure:
                failure.reason = f"the group did not start: {failure.reason}"
                return failure
        return ranks.run_case(job.suite_name, job.case, self._sampling)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for ranks in self._groups:
            ranks.stop() if kind is None else ranks.kill()


def _too_few_gpus(site: Site) -> str | None:
    """Why ranks cannot each have a GPU here, or None. Two ranks on one GPU are refused by NCCL."""
    from bench.hardware import cuda_device_count

    if site.device == "cpu" or site.ranks_on_host <= cuda_device_count():
        return None
    return f"needs {site.ranks_on_host} GPUs, {cuda_device_count()} here; --device cpu measures over gloo"


def _threads(world: int) -> dict[str, str]:
    """Compute threads of each rank: the cores are shared out evenly."""
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // world))}


@contextmanager
def _signals_end_the_run() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a lost terminal raise once; more of them must not disturb the cleaning up after the first."""

    def end_once(*_: Any) -> None:
        for ending in ENDING_SIGNALS:
            signal.signal(ending, signal.SIG_IGN)
        raise InterruptedRunError

    previous = {ending: signal.signal(ending, end_once) for ending in ENDING_SIGNALS}
    try:
        yield
    finally:
        for ending, handler in previous.items():
            signal.signal(ending, handler)
