"""Profiles the cases of a request under supervision, and says which files came of each."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.errors import EXIT_NOT_MEASURED, EXIT_OK, StoreError, UsageError
from bench.launch.lab import Lab, LabShape, remove_leftovers
from bench.launch.supervisor import STOP_TIMEOUT_S, Failure, RankProcesses
from bench.profiling.tools import FINISH_S, SUFFIX, WRAPPING, require_tool, wrapper
from bench.session import (
    InterruptedRunError,
    choose_device,
    compute_threads,
    patience_for,
    refuse_impossible_worlds,
    sampling_for,
    signals_end_the_run,
    sites_of_group,
    too_few_gpus,
)
from bench.sweep import make_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.launch.site import Device
    from bench.profiling.settings import ProfileSettings
    from bench.suite import Site
    from bench.sweep import Job, Request
    from bench.trace.merge import RankClock

MOST_CASES = 32
MERGED = "merged.json.gz"
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,+-]+")


@dataclass
class CaseProfile:
    """What became of a case.

    Attributes:
        suite, case: its suite's name and its id.
        status: ``ok``, ``skipped``, ``failed`` or ``timeout``; reason: why it is not ok.
        files: that were written.
        remarks: what a reader of the files should know.
    """

    suite: str
    case: str
    status: str = "ok"
    reason: str = ""
    files: list[Path] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "files": [str(file) for file in self.files]}


@dataclass
class Profiles:
    """What became of all cases; interrupted if the user ended it."""

    cases: list[CaseProfile] = field(default_factory=list)
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 if every case has its files, or a reason why this machine is not meant for it, and one has files."""
        statuses = {case.status for case in self.cases}
        bad = statuses & {"failed", "timeout"} or "ok" not in statuses
        return EXIT_NOT_MEASURED if bad or self.interrupted else EXIT_OK


class ProfileListener(Protocol):
    """Told what happens."""

    def case_started(self, number: int, of: int, job: Job) -> None:
        """A case is about to be profiled."""

    def case_ended(self, profile: CaseProfile, seconds: float) -> None:
        """The files of a case are written, or it failed."""

    def note(self, text: str) -> None:
        """Something that the user should know, in one line."""


def profile(request: Request, settings: ProfileSettings, listener: ProfileListener) -> Profiles:
    """Profile every case of the request, each into a folder of its own below the settings' (one case: into it).

    Raises:
        UsageError: the request cannot be met here, or the tool is missing; nothing was started.
        StoreError: the folder cannot be written.
    """
    device = choose_device(request)
    require_tool(settings.tool, device)
    shape = LabShape.parse(request.lab) if request.lab else None
    jobs = make_sweep(request, shape.world if shape else None)
    refuse_too_many(jobs)
    refuse_impossible_worlds(jobs)
    folders = folders_of(jobs, Path(settings.folder))
    profiles = Profiles()
    with signals_end_the_run():
        try:
            with ExitStack() as stack:
                if shape:
                    for text in remove_leftovers():
                        listener.note(text)
                lab = stack.enter_context(Lab(shape)) if shape else None
                groups = _Groups(request, shape, lab, device)
                stack.push(groups.leave)
                for number, (job, folder) in enumerate(zip(jobs, folders, strict=True), start=1):
                    listener.case_started(number, len(jobs), job)
                    began = time.monotonic()
                    profiles.cases.append(_profile_case(job, groups, replace(settings, folder=str(folder))))
                    listener.case_ended(profiles.cases[-1], time.monotonic() - began)
        except InterruptedRunError:
            profiles.interrupted = True
    return profiles


class _Groups:
    """The group of ranks that serves the cases of one world, until another world or another tool's process is due."""

    def __init__(self, request: Request, shape: LabShape | None, lab: Lab | None, device: Device) -> None:
        self.request, self._shape, self._lab, self._device = request, shape, lab, device
        self._ranks: RankProcesses | None = None
        self._world = 0

    def sites(self, world: int) -> list[Site]:
        return sites_of_group(world, self._shape, self._device, self.request.seed)

    def started(self, world: int, settings: ProfileSettings) -> RankProcesses | Failure:
        """A group that is ready for a case; one below a tool is always a new one."""
        ranks = self._ranks
        if ranks and ranks.running and not ranks.lost_between_cases() and self._world == world:
            return ranks
        self.stop()
        wraps = settings.tool in WRAPPING
        ranks = RankProcesses(
            self.sites(world),
            patience_for(self.request),
            self._lab if world > 1 else None,
            compute_threads(world),
            wrapper(settings.tool, Path(settings.folder), self._device),
            FINISH_S if wraps else STOP_TIMEOUT_S,
        )
        failure = ranks.start()
        if failure:
            failure.reason = f"the group did not start: {failure.reason}"
            return failure
        self._ranks, self._world = ranks, world
        return ranks

    def stop(self) -> None:
        """Let the ranks leave, and a tool around them write its report."""
        if self._ranks and self._ranks.running:
            self._ranks.stop()
        self._ranks = None

    def leave(self, kind: type[BaseException] | None, *_: object) -> None:
        """At the end: in order, or at once if something was raised."""
        if kind is None:
            self.stop()
        elif self._ranks and self._ranks.running:
            self._ranks.kill()


def _profile_case(job: Job, groups: _Groups, settings: ProfileSettings) -> CaseProfile:
    result = CaseProfile(job.suite_name, job.case.id)
    lacking = too_few_gpus(groups.sites(job.world)[0])
    if lacking:
        result.status, result.reason = "skipped", lacking
        return result
    folder = Path(settings.folder)
    make_case_folder(folder)
    ranks = groups.started(job.world, settings)
    records = (
        ranks
        if isinstance(ranks, Failure)
        else ranks.profile_case(job.suite_name, job.case, sampling_for(groups.request), settings.to_dict())
    )
    if isinstance(records, Failure):
        result.status, result.reason = records.status, records.reason
        if records.details:
            result.files.append(save_case_stacks(folder, records.details))
        return result
    if settings.tool in WRAPPING:
        groups.stop()
    return finish_case(result, records, settings, folder)


def finish_case(
    result: CaseProfile, records: list[dict[str, Any]], settings: ProfileSettings, folder: Path
) -> CaseProfile:
    """Gather the ranks' files, merge their traces, and say what is wrong with any of them."""
    skipped = next((record["skipped"] for record in records if record["skipped"]), "")
    if skipped:
        result.status, result.reason = "skipped", skipped
        return result
    if settings.tool in WRAPPING:
        for record in records:
            record["files"] = [f"rank{record['rank']}.{SUFFIX[settings.tool]}"]
    named = [folder / name for record in records for name in record["files"]]
    result.files = [file for file in named if file.exists()]
    problems = [str(record["problem"]) for record in records if record["problem"]]
    problems += [f"{file.name} was not written" for file in named if not file.exists()]
    wrong = [f"{record['rank']}" for record in records if record["wrong"]]
    if wrong:
        problems.append(f"wrong element(s) on rank(s) {', '.join(wrong)}")
    if settings.tool == "torch" and not problems:
        clocks = merge_records(records, folder)
        result.files.append(folder / MERGED)
        result.remarks.append(_accuracy(clocks))
    result.remarks += dict.fromkeys(str(record["remark"]) for record in records if record["remark"])
    if problems:
        result.status, result.reason = "failed", "; ".join(dict.fromkeys(problems))
    return result


def merge_records(records: Sequence[dict[str, Any]], folder: Path) -> dict[int, RankClock]:
    """Merge the ranks' traces in a folder, by what the ranks said of them (``bench.profiling.in_rank``)."""
    from bench.trace.merge import RankTrace, merge_traces

    traces = [
        RankTrace(
            record["rank"],
            folder / record["files"][0],
            {anchor["name"]: (anchor["before_ns"], anchor["after_ns"]) for anchor in record["anchors"]},
            record["offset_ns"],
            record["error_ns"],
        )
        for record in records
    ]
    return merge_traces(traces, folder / MERGED)


def _accuracy(clocks: dict[int, RankClock]) -> str:
    worst = max(clocks, key=lambda rank: clocks[rank].error_us)
    return f"clocks of the ranks agree to {clocks[worst].error_us:.1f} us or better (the worst is rank {worst})"


def refuse_too_many(jobs: Sequence[Job]) -> None:
    """A profile of everything is for nobody.

    Raises:
        UsageError: more cases than ``MOST_CASES``.
    """
    if len(jobs) > MOST_CASES:
        raise UsageError(f"{len(jobs)} cases are too many to profile (at most {MOST_CASES}); choose with --select")


def folders_of(jobs: Sequence[Job], root: Path) -> list[Path]:
    """A folder a case, named after it; a single case needs none of its own."""
    if len(jobs) == 1:
        return [root]
    digits = len(str(len(jobs)))
    return [
        root / f"{number:0{digits}d}-{_UNSAFE.sub('_', f'{job.suite_name},{job.case.id}')[:100]}"
        for number, job in enumerate(jobs, start=1)
    ]


def make_case_folder(folder: Path) -> None:
    """Make a case's folder.

    Raises:
        StoreError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror}; choose another with --output") from error


def save_case_stacks(folder: Path, stacks: dict[int, str]) -> Path:
    """Write all ranks' stacks into the folder of a case that failed.

    Raises:
        StoreError: they cannot be written.
    """
    path = folder / "stacks-of-the-failure.txt"
    text = "\n\n".join(f"== rank {rank} ==\n{stack}" for rank, stack in sorted(stacks.items())) + "\n"
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; choose another folder with --output") from error
    return path
