"""The verb ``bench noise``: how much measurements of the same code differ on this machine, by metric and case."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.completion import PresetOption, complete_suite
from bench.errors import EXIT_NOT_MEASURED, EXIT_OK, UsageError
from bench.store_commands import JsonFlag, StoreOption  # noqa: TC001  # typer reads the annotations when it runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from bench.noise_floors import NoiseFloors
    from bench.verbs import RunOptions

MOST_REPEATS = 100

FINDING_TEXTS = {
    "drift_between": "drifts from run to run",
    "drift_within": "drifts within a run",
    "autocorrelated": "samples follow each other",
    "bimodal": "two modes",
    "runs_differ": "runs differ by more than their samples",
    "few_measurements": "few repeats: the floor is mostly doubt",
}


def noise(
    suites: Annotated[
        list[str], typer.Argument(help="Names from `bench list`, or module:Class.", autocompletion=complete_suite)
    ],
    repeats: Annotated[int, typer.Option("--repeats", help="How often everything is measured, a run each.")] = 5,
    session: Annotated[
        str,
        typer.Option("--session", help="Joins calls that measure the same code, on other days or in other jobs."),
    ] = "",
    preset: PresetOption = "quick",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PARAM=VALUES", help="Replace a parameter's values.")
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="PARAM=VALUES", help="Keep only cases with these values.")
    ] = None,
    ranks: Annotated[str, typer.Option("--ranks", help="Ranks of multi-rank suites: 4, 2,4 or 2:16.")] = "",
    lab: Annotated[str, typer.Option("--lab", metavar="SHAPE", help="Emulated cluster: nodes=4,rate=1gbit.")] = "",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Seed of traffic and data.")] = 0,
    max_time: Annotated[
        float | None, typer.Option("--max-time", help="Most seconds in timed iterations of one case.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="How many groups of processes measure each case in a run.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds without any progress after which a case has failed.")
    ] = None,
    as_json: JsonFlag = False,
    store: StoreOption = None,
) -> None:
    """Measure the A/A noise: the same code several times. `bench gate` counts no change that is smaller.

    Each repeat is an ordinary run in the store; the noise is computed from them whenever it is needed.
    Measure in the way in which the gate's runs are measured: same preset, ranks and rounds.

    Example: bench noise memory --repeats 8
    """
    from bench.verbs import RunOptions

    options = RunOptions(
        suites=tuple(suites),
        preset=preset,
        overrides=tuple(overrides or ()),
        select=tuple(select or ()),
        ranks=ranks,
        lab=lab,
        device=device,
        seed=seed,
        max_time_s=max_time,
        rounds=rounds,
        timeout_s=timeout,
        store=store,
    )
    raise typer.Exit(measure_noise_and_show(options, repeats, session, as_json))


def measure_noise_and_show(options: RunOptions, repeats: int, session: str, as_json: bool) -> int:
    """Measure, show the noise of every series of the session, and give the exit code.

    Raises:
        UsageError: a number or a name that cannot be; several repeats under a launcher.
    """
    from bench.launch.launchers import detect

    if not 1 <= repeats <= MOST_REPEATS:
        raise UsageError(f"--repeats needs a whole number from 1 to {MOST_REPEATS}, not {repeats}")
    if session.startswith("-"):
        raise UsageError(f"--session needs a name, not {session!r}")
    launched = detect()
    if launched and (repeats > 1 or not session):
        # The processes of a launcher stay the same, so a second measurement by them would be no independent one.
        raise UsageError(
            "under a launcher each repeat needs processes of its own: start `bench noise ... --repeats 1"
            " --session NAME` several times with one name"
        )
    if repeats == 1 and not session:
        raise UsageError("one repeat says nothing of noise; ask for more, or name a --session that others join")
    name = session or secrets.token_hex(4)
    from bench.noise_floors import MARK, SESSION_OPTION

    command = [MARK, *_words(options), "--repeats", str(repeats), SESSION_OPTION, name]
    statuses, interrupted = _measure(options, command, repeats)
    if launched and launched.rank != 0:
        return EXIT_OK if statuses == {EXIT_OK} and not interrupted else EXIT_NOT_MEASURED
    floors = _of_session(options, name)
    records = describe(floors)
    if as_json:
        json.dump({"schema_version": 1, "session": name, "series": records}, sys.stdout, allow_nan=False)
        print()
    else:
        _print_table(records)
    known = sum(record["floor"] is not None for record in records)
    print(f"session {name}: the noise of {known} of {len(records)} series is known", file=sys.stderr)
    return EXIT_OK if statuses == {EXIT_OK} and known and not interrupted else EXIT_NOT_MEASURED


def describe(floors: NoiseFloors) -> list[dict[str, Any]]:
    """The noise of each series as plain data, the noisiest first; those that it cannot be known of last."""
    from bench.gate_output.as_json import plain

    records = []
    for (series, machine), rows in floors.measurements.items():
        found = floors.noise(series, machine)
        facts: dict[str, Any] = {"floor": None} if found is None else asdict(found)
        record = {**series._asdict(), "params": dict(rows[-1].params), "machine": machine, **facts}
        record["runs"] = [row.run_id for row in rows]
        records.append(plain(record))
    return sorted(records, key=lambda record: (record["floor"] is None, -(record["floor"] or 0.0)))


def _measure(options: RunOptions, command: Sequence[str], repeats: int) -> tuple[set[int], bool]:
    """Exit codes of the repeats, and whether they were ended early."""
    from bench.console import ConsoleListener
    from bench.launch.lab import LabShape
    from bench.launch.launchers import detect
    from bench.session import execute
    from bench.sweep import make_sweep

    request = options.request()
    launched, statuses = detect(), set()
    if not launched:
        # Refuses unknown names before the first repeat is announced.
        make_sweep(request, LabShape.parse(request.lab).world if request.lab else None)
    for repeat in range(repeats):
        listener = ConsoleListener()
        try:
            if repeats > 1 and not launched:
                listener.note(f"repeat {repeat + 1} of {repeats}")
            if launched:
                from bench.launched_session import execute_launched

                outcome = execute_launched(launched, request, options.store_path, listener, command, None)
            else:
                outcome = execute(request, options.store_path, listener, command)
        finally:
            listener.close()
        statuses.add(outcome.exit_code)
        if outcome.interrupted:
            return statuses, True
    return statuses, False


def _of_session(options: RunOptions, name: str) -> NoiseFloors:
    """What the store knows of one session alone."""
    from bench.noise_floors import NoiseFloors, newest_session, session_of
    from bench.store.reader import Store

    reader = Store(options.store_path)
    records = {run.run_id: run.record for run in reader.runs() if session_of(run.record) == name}
    rows = reader.rows(run_ids=list(records)) if records else []
    return NoiseFloors(newest_session(rows, records))


def _words(options: RunOptions) -> list[str]:
    """The options as they would be typed."""
    words = list(options.suites)
    named: list[tuple[str, Any]] = [("--preset", options.preset)]
    named += [("--set", text) for text in options.overrides] + [("--select", text) for text in options.select]
    named += [("--ranks", options.ranks), ("--lab", options.lab), ("--seed", options.seed or "")]
    named += [("--device", options.device), ("--max-time", options.max_time_s), ("--rounds", options.rounds)]
    named.append(("--timeout", options.timeout_s))
    return words + [word for name, value in named if value not in ("", None) for word in (name, str(value))]


@dataclass(frozen=True)
class _Of:
    """Of which case a record is."""

    suite: str
    params: dict[str, Any]


def _print_table(records: Sequence[dict[str, Any]]) -> None:
    """A table a suite, then what the floor means."""
    from rich.console import Console
    from rich.text import Text

    from bench.gate_output.text import CaseNames, visible

    if not records:
        print("no series was measured twice")
        return
    console = Console()
    cases = [_Of(record["suite"], record["params"]) for record in records]
    names = CaseNames(cases)
    for suite in dict.fromkeys(case.suite for case in cases):
        heading = Text(visible(suite), style="bold")
        heading.append(f"  {names.shared(suite)}", style="not bold dim")
        console.print(heading)
        shown = [(record, names.of(case)) for record, case in zip(records, cases, strict=True) if case.suite == suite]
        console.print(_table(shown))
    meaning = "floor: the change that two runs of the same code exceed once in twenty times"
    console.print(Text(meaning, style="dim"))


def _table(shown: Sequence[tuple[dict[str, Any], str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from bench.gate_output.text import share_text, visible

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("metric", no_wrap=True, overflow="ellipsis")
    if with_case := any(name for _, name in shown):
        table.add_column("case", overflow="fold")
    for title in ("floor", "between runs", "within a run"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("findings", overflow="fold")
    for record, name in shown:
        findings = "; ".join(FINDING_TEXTS.get(finding, finding) for finding in record.get("findings", ()))
        table.add_row(
            Text(visible(record["metric"])),
            *([Text(name)] if with_case else []),
            Text(share_text(record["floor"])),
            Text(share_text(record.get("between"))),
            Text(share_text(record.get("within"))),
            Text(findings or ("no relative noise: the values are about zero" if record["floor"] is None else "")),
        )
    return table
