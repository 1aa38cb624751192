"""The verb ``bench submit``: measure as a Slurm job, and wait for its rows."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from bench.errors import EXIT_NOT_MEASURED, EXIT_OK, BenchError, UsageError
from bench.store_commands import JsonFlag, StoreOption, default_store_path

if TYPE_CHECKING:
    from pathlib import Path

    from bench.slurm.client import JobState
    from bench.slurm.folder import Job
    from bench.slurm.outcome import JobOutcome
    from bench.store.reader import RunSummary

SHARED_FILES_S = 5.0
"""How long a network file system may keep what a node wrote last from us."""


def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- VERB ...", help="What the job runs: run or characterize, with its options."),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option("--slurm", metavar="KEY=VALUE,...", help="nodes=2,ranks-per-node=4,time=0:30:00,partition=..."),
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Follow the job to its end, and end as it did.",
            show_default="wait after submitting",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the batch script; submit nothing.")] = False,
    status: Annotated[
        str | None, typer.Option("--status", metavar="JOB", help="Show a submitted job: its number, or latest.")
    ] = None,
    cancel: Annotated[
        str | None, typer.Option("--cancel", metavar="JOB", help="Cancel a submitted job, and wait until it has ended.")
    ] = None,
    as_json: JsonFlag = False,
    store: StoreOption = None,
) -> None:
    """Measure as a Slurm job: writes a batch script, submits it, follows it, and shows its rows.

    Example: bench submit --slurm nodes=2,ranks-per-node=4,time=0:30:00 -- run collectives
    """
    from pathlib import Path

    place = Path.cwd() / (store or default_store_path())
    if status is not None or cancel is not None:
        if command or slurm or dry_run or (status is not None and cancel is not None):
            raise UsageError("--status JOB and --cancel JOB stand alone: leave --slurm, --dry-run and the call out")
        raise typer.Exit(
            _show(place, status, as_json, wait=wait or False) if status is not None else _cancel(place, cancel, as_json)
        )
    if not slurm:
        raise UsageError("say what to ask Slurm for: --slurm nodes=2,ranks-per-node=4,time=0:30:00")
    raise typer.Exit(_submit(command or [], slurm, place, dry_run=dry_run, wait=wait is not False, as_json=as_json))


def _submit(arguments: list[str], texts: list[str], store: Path, *, dry_run: bool, wait: bool, as_json: bool) -> int:
    from bench.slurm.client import require_slurm, submit_script
    from bench.slurm.folder import Job, new_folder, write_script
    from bench.slurm.measured import MeasuredCommand
    from bench.slurm.options import JobOptions
    from bench.slurm.script import batch_script

    options = JobOptions.parse(texts)
    if not dry_run:
        require_slurm()
    measured = MeasuredCommand.parse(arguments, options, store)
    folder = new_folder(store)
    text = batch_script(options, measured, folder, store)
    if dry_run and as_json:
        described = {"schema_version": 1, "verb": measured.verb, "store": str(store), "script": text}
        print(json.dumps(described, indent=2))
        return EXIT_OK
    if dry_run:
        print(text, end="")
        return EXIT_OK
    script = write_script(folder, text)
    try:
        number, cluster = submit_script(script)
    except BenchError:
        with suppress(OSError):
            script.unlink()
            folder.rmdir()
        raise
    job = Job(number, cluster, measured.verb, folder, store)
    job.save()
    say(f"job {number}: submitted; script {script}, log {job.log}")
    if wait:
        return _follow(job, as_json)
    if as_json:
        _print_json(job, None, None, None)
    else:
        print(f"job:    {number}\nscript: {script}\nlog:    {job.log}")
    return EXIT_OK


def _show(store: Path, number: str, as_json: bool, *, wait: bool) -> int:
    """``--status``: what there is by now; a job that has not ended is no failure."""
    from bench.slurm.client import look, require_slurm
    from bench.slurm.folder import find_job
    from bench.slurm.follow import describe
    from bench.slurm.run_of_log import run_of_log

    job = find_job(store, number)
    require_slurm()
    if wait:
        return _follow(job, as_json)
    state = look(job)
    if state.ended:
        return _collect(job, state, as_json)
    run = run_of_log(job.log, store)
    if as_json:
        _print_json(job, state, run, None)
    else:
        print(f"job {job.number}: {describe(state)}")
        if run:
            print(f"run {run.run_id}: {run.cases_with_rows} of {run.record.cases} case(s) have rows")
        print(f"log: {job.log}")
    return EXIT_OK


def _cancel(store: Path, number: str | None, as_json: bool) -> int:
    from bench.slurm.client import look, require_slurm
    from bench.slurm.folder import find_job

    job = find_job(store, number or "")
    require_slurm()
    state = look(job)
    return _collect(job, state, as_json) if state.ended else _follow(job, as_json, cancelled=True)


def _follow(job: Job, as_json: bool, *, cancelled: bool = False) -> int:
    from bench.slurm.follow import Detached, follow

    try:
        state = follow(job, say, cancelled=cancelled)
    except Detached:
        say(f"job {job.number} is left to itself; `bench submit --status {job.number} --wait` follows it again")
        return EXIT_NOT_MEASURED
    return _collect(job, state, as_json)


def _collect(job: Job, state: JobState, as_json: bool) -> int:
    """Show the rows of an ended job, and say how it ended."""
    from bench.slurm.outcome import judge_end
    from bench.slurm.run_of_log import run_of_log

    deadline = time.monotonic() + SHARED_FILES_S
    while (run := run_of_log(job.log, job.store)) is None and state.state == "COMPLETED":
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    outcome = judge_end(job, state, run)
    if as_json:
        _print_json(job, state, run, outcome)
    elif run and not _show_own_output(job, outcome):
        from bench.report.terminal import print_table
        from bench.verbs import load_runs

        print_table(*load_runs(job.store, (run.run_id,)))
    say(outcome.message + (f"; run {run.run_id} is stored in {job.store}" if run else ""))
    return outcome.exit_code


def _show_own_output(job: Job, outcome: JobOutcome) -> bool:
    """``bench characterize`` ends with the names of its files rather than with a table."""
    if job.verb != "characterize" or outcome.exit_code != EXIT_OK:
        return False
    from bench.slurm.follow import printable

    try:
        print("\n".join(printable(line) for line in job.output.read_text(errors="replace").splitlines()))
    except OSError:
        return False
    return True


def _print_json(job: Job, state: JobState | None, run: RunSummary | None, outcome: JobOutcome | None) -> None:
    described = {
        "job": job.number,
        "cluster": job.cluster,
        "state": state.state if state else "SUBMITTED",
        "exit_code": outcome.exit_code if outcome else None,
        "message": outcome.message if outcome else "",
        "run_id": run.run_id if run else None,
        "script": str(job.script),
        "log": str(job.log),
        "output": str(job.output),
        "store": str(job.store),
    }
    print(json.dumps(described, indent=2))


def say(text: str) -> None:
    """A line for the user, on standard error; the job goes on when nobody reads it."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
