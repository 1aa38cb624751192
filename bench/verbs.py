"""The longer verbs of the command line: run, characterize and report, from options to exit code."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

import typer

from bench.console import ConsoleListener
from bench.definitions import parse_range
from bench.errors import EXIT_NOT_MEASURED, StoreError, UsageError
from bench.launch.launchers import Launched, detect
from bench.registry import load_suite, suite_names
from bench.session import Outcome, execute, resume
from bench.store_commands import default_store_path
from bench.sweep import Request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.platform_profile import PlatformProfile
    from bench.store.row import Row, RunRecord

FIRST_WORD_S = 10.0
"""How long a rank waits for rank 0 to say what is wrong, where no launcher ends it before."""


@dataclass(frozen=True)
class RunOptions:
    """The options of ``bench run`` and ``bench characterize`` as typed; ``Request`` says what they mean."""

    suites: tuple[str, ...] = ()
    preset: str = "quick"
    overrides: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ranks: str = ""
    lab: str = ""
    device: str = "auto"
    seed: int = 0
    max_time_s: float | None = None
    rounds: int | None = None
    timeout_s: float | None = None
    resume: str | None = None
    store: Path | None = None
    ranges: bool = False

    @property
    def store_path(self) -> Path:
        return self.store or default_store_path()

    def request(self) -> Request:
        """The checked request.

        Raises:
            UsageError: a value that no run can have.
        """
        if self.resume is not None:
            return self._resumed()
        if not self.suites:
            raise UsageError("name at least one suite; `bench list` shows them")
        return Request(
            suites=self.suites,
            preset=self.preset,  # type: ignore[arg-type]  # Request checks it
            overrides=self.overrides,
            select=self.select,
            ranks=parse_ranks(self.ranks),
            lab=self.lab,
            device=self.device,  # type: ignore[arg-type]  # Request checks it
            seed=self.seed,
            max_time_s=self.max_time_s,
            rounds=self.rounds,
            timeout_s=self.timeout_s,
            ranges=self.ranges,
        )

    def _resumed(self) -> Request:
        """The request of ``--resume``: the stored run knows the rest, so nothing else may be asked for."""
        if self != RunOptions(resume=self.resume, store=self.store):
            raise UsageError("--resume goes on with what the run was asked for; leave suites and other options out")
        return Request(suites=())


def parse_ranks(text: str) -> tuple[int, ...]:
    """Worlds from ``4``, ``2,4`` or ``2:16``; nothing for the preset's own.

    Raises:
        UsageError: not numbers from 1 up.
    """
    if not text:
        return ()
    try:
        return tuple(ranks for part in text.split(",") for ranks in parse_range(part.strip()))
    except UsageError:
        raise UsageError(f"--ranks needs whole numbers from 1 up, such as 4, 2,4 or 2:16, not {text!r}") from None


def characterizing_suites() -> tuple[str, ...]:
    """Names of the installed suites that ``bench characterize`` runs."""
    return tuple(name for name in suite_names() if load_suite(name).characterizes)


def run_and_show(options: RunOptions, json_to: str | None) -> int:
    """``bench run``: measure, show a table (or rows as JSON), and give the exit code."""
    options.request()
    with ExitStack() as stack:
        rows_to = stack.enter_context(_open_rows(json_to)) if json_to is not None else None
        launched = detect()
        listener = ConsoleListener(rows_to)
        outcome = _measure(options, launched, listener)
    if launched and launched.rank != 0:
        return outcome.exit_code
    if json_to != "-":
        from bench.report.terminal import print_table

        print_table(*load_runs(options.store_path, (outcome.run_id,)))
    _say_how_it_ended(outcome, options)
    # Whoever reads standard output may leave when he has enough; a file was asked for whole.
    if json_to != "-" and listener.rows_error is not None:
        raise StoreError(f"cannot write {json_to}: {listener.rows_error.strerror}")
    return outcome.exit_code


def characterize_and_show(options: RunOptions, output: Path | None, as_json: bool) -> int:
    """``bench characterize``: measure every suite, write profile and report, and name them last."""
    launched = detect()
    if options.resume is None:
        options = replace(options, suites=characterizing_suites())
    if output is not None:
        make_folder(output)
    outcome = _measure(options, launched, ConsoleListener())
    if launched and launched.rank != 0:
        return outcome.exit_code
    rows, runs = load_runs(options.store_path, (outcome.run_id,))
    profile_path, report_path = write_results(rows, runs, output or options.store_path / "reports" / outcome.run_id)
    _say_how_it_ended(outcome, options)
    if as_json:
        paths = {"run_id": outcome.run_id, "profile": str(profile_path), "report": str(report_path)}
        print(json.dumps(paths))
    else:
        print(f"profile: {profile_path}")
        print(f"report:  {report_path}")
    return outcome.exit_code


def report_runs(names: tuple[str, ...], html: Path | None, as_json: bool, store: Path | None) -> None:
    """``bench report``: stored runs as tables, as JSON lines, or as an HTML page."""
    rows, runs = load_runs(store or default_store_path(), names)
    if html is not None:
        from bench.report.html import write_html

        print(f"report: {write_html(html, rows, runs, build_profile_if_any(rows, runs))}")
    elif as_json:
        for row in rows:
            print(row.to_json())
    else:
        from bench.report.terminal import print_table

        print_table(rows, runs)


def load_runs(store: Path, names: tuple[str, ...]) -> tuple[list[Row], list[RunRecord]]:
    """Rows and records of stored runs, by id, unique prefix, or ``latest``.

    Raises:
        UsageError: no such run.
    """
    from bench.store.reader import Store

    reader = Store(store)
    run_ids = list(dict.fromkeys(reader.resolve(name) for name in names))
    rows = reader.rows(run_ids=run_ids)
    for warning in reader.torn:
        print(f"bench: {warning}", file=sys.stderr)
    return rows, [reader.record(run_id) for run_id in run_ids]


def write_results(rows: list[Row], runs: list[RunRecord], folder: Path) -> tuple[Path, Path]:
    """Write ``profile.json`` and ``report.html`` into a folder; returns both paths."""
    from bench.profile_builder import build_profile
    from bench.report.html import write_html

    profile = build_profile(rows, runs)
    make_folder(folder)
    profile_path = folder / "profile.json"
    profile.save(profile_path)
    return profile_path, write_html(folder / "report.html", rows, runs, profile)


def make_folder(folder: Path) -> None:
    """Make a folder for results, and see that it can be written, before anything is measured for it.

    Raises:
        StoreError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror}; choose another with --output") from error


def build_profile_if_any(rows: list[Row], runs: list[RunRecord]) -> PlatformProfile | None:
    """The platform profile of a run, or None: of several runs, or none of ``characterize``'s suites."""
    from bench.profile_builder import build_profile

    of_a_platform = {row.suite for row in rows} & {*characterizing_suites()}
    return build_profile(rows, runs) if len(runs) == 1 and of_a_platform else None


def _measure(options: RunOptions, launched: Launched | None, listener: ConsoleListener) -> Outcome:
    """Measure under a launcher if there is one, else under our own supervision."""
    try:
        request = options.request()
        if launched:
            from bench.launched_session import execute_launched

            return execute_launched(launched, request, options.store_path, listener, sys.argv[1:], options.resume)
        if options.resume is not None:
            return resume(options.resume, options.store_path, listener)
        return execute(request, options.store_path, listener, sys.argv[1:])
    except UsageError as error:
        # Wrong words are wrong on every rank alike: one rank says so. The others let it speak first, since a
        # launcher ends all ranks as soon as one has left.
        if launched and launched.rank != 0:
            time.sleep(FIRST_WORD_S)
            raise typer.Exit(error.exit_code) from None
        raise
    finally:
        listener.close()


@contextmanager
def _open_rows(target: str) -> Iterator[IO[str]]:
    if target == "-":
        yield sys.stdout
        return
    try:
        file = open(target, "w")  # noqa: SIM115  # closed below; only opening may fail with this message
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    try:
        yield file
    finally:
        # Each row is flushed, and what could not be is known.
        with suppress(OSError):
            file.close()


def _say_how_it_ended(outcome: Outcome, options: RunOptions) -> None:
    from bench.asked_case import asked_case
    from bench.report.cases import is_settled
    from bench.report.formatting import counted

    cases: dict[tuple[str, str], str] = {}
    for row in outcome.rows:
        key = (row.suite, asked_case(row.suite, row.case))
        cases[key] = row.status if cases.get(key, "ok") == "ok" else cases[key]
    counts = {status: list(cases.values()).count(status) for status in dict.fromkeys(cases.values())}
    text = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing"

    unsettled = {(row.suite, asked_case(row.suite, row.case)) for row in outcome.rows if not is_settled(row)}
    if unsettled:
        text += f" ({len(unsettled)} did not settle: an idle machine or another --preset settles more)"
    how_many = f"{counted(len(cases), 'case')}: {text}; {counted(len(outcome.rows), 'row')}"
    print(f"run {outcome.run_id}: {how_many} stored in {options.store_path}", file=sys.stderr)
    if outcome.exit_code == EXIT_NOT_MEASURED and outcome.cases_left:
        print(f"{outcome.cases_left} case(s) left; go on with --resume {outcome.run_id}", file=sys.stderr)
