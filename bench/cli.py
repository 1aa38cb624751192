"""The program ``bench``: every verb a thin function over the module that does the work."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import Annotated, Any, NoReturn

import typer

from bench import __version__
from bench.breakdown_command import breakdown
from bench.completion import PresetOption, complete_suite
from bench.errors import EXIT_NOT_MEASURED, EXIT_OK, BenchError, UsageError
from bench.gate_command import gate
from bench.help_text import WholeSummaries
from bench.history_command import history
from bench.import_command import import_results
from bench.noise_command import noise
from bench.profile_command import profile
from bench.store_commands import JsonFlag, StoreOption, db_app
from bench.submit_command import submit

app = typer.Typer(
    name="bench",
    cls=WholeSummaries,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(db_app, name="db", cls=WholeSummaries)

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PARAM=VALUES", help="Replace a parameter's values: bytes=1KiB:1MiB, dtype=int8."),
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="PARAM=VALUES", help="Keep only the cases with these values: op=all_*."),
]
RanksOption = Annotated[str, typer.Option("--ranks", help="Ranks of multi-rank suites: 4, or a sweep 2,4 or 2:16.")]
LabOption = Annotated[
    str, typer.Option("--lab", metavar="SHAPE", help="Emulated cluster: nodes=4,ranks-per-node=2,rate=1gbit.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of traffic and data.")]
MaxTimeOption = Annotated[
    float | None, typer.Option("--max-time", help="Most seconds in timed iterations of one case.")
]
RoundsOption = Annotated[
    int | None, typer.Option("--rounds", help="How many groups of processes measure each case, sharing its time.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", help="Seconds without any progress after which a case has failed.")
]
ResumeOption = Annotated[
    str | None, typer.Option("--resume", metavar="RUN", help="Finish an earlier run: its id, a prefix, or latest.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"bench {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Characterize a machine for mixture-of-experts training: measure, store, judge, show."""


@app.command()
def doctor(store: StoreOption = None, as_json: JsonFlag = False) -> None:
    """What this machine can run, what is missing, and the command that would add it.

    Example: bench doctor
    """
    from bench.doctor import exit_code, render, run_checks
    from bench.store_commands import default_store_path

    checks = run_checks(store or default_store_path())
    if as_json:
        _print_json([check.to_dict() for check in checks])
    else:
        from rich.console import Console

        Console().print(render(checks), crop=False)
    raise typer.Exit(exit_code(checks))


@app.command("list")
def list_suites(
    suite: Annotated[
        str | None, typer.Argument(help="Show this suite's parameters and metrics.", autocompletion=complete_suite)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """The suites that can be run; with a name, its parameters, presets and metrics.

    Example: bench list collectives
    """
    from bench.listing import describe_suite, describe_suites, print_suite, print_suites

    if suite is None:
        overview = describe_suites()
        _print_json(overview) if as_json else print_suites(overview)
    else:
        details = describe_suite(suite)
        _print_json(details) if as_json else print_suite(details)


@app.command()
def run(
    suites: Annotated[
        list[str] | None,
        typer.Argument(help="Names from `bench list`, or module:Class.", autocompletion=complete_suite),
    ] = None,
    preset: PresetOption = "quick",
    overrides: SetOption = None,
    select: SelectOption = None,
    ranks: RanksOption = "",
    lab: LabOption = "",
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    max_time: MaxTimeOption = None,
    rounds: RoundsOption = None,
    timeout: TimeoutOption = None,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="Add a row for each range that the measured code marks.")
    ] = False,
    resume: ResumeOption = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write rows as JSON lines; - for standard output.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Measure suites on this machine, or on the ranks that torchrun, srun or mpirun started.

    Example: bench run collectives --ranks 4 --set bytes=1KiB:64MiB --select op=all_gather
    """
    from bench.verbs import RunOptions, run_and_show

    options = RunOptions(
        suites=tuple(suites or ()),
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
        ranges=ranges,
        resume=resume,
        store=store,
    )
    raise typer.Exit(run_and_show(options, json_to))


@app.command()
def characterize(
    preset: PresetOption = "quick",
    overrides: SetOption = None,
    select: SelectOption = None,
    ranks: RanksOption = "",
    lab: LabOption = "",
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    max_time: MaxTimeOption = None,
    rounds: RoundsOption = None,
    timeout: TimeoutOption = None,
    resume: ResumeOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for report and profile.", show_default="the store")
    ] = None,
    as_json: JsonFlag = False,
    store: StoreOption = None,
) -> None:
    """Measure everything about this machine: writes its platform profile and an HTML report.

    Example: bench characterize --preset quick
    """
    from bench.verbs import RunOptions, characterize_and_show

    options = RunOptions(
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
        resume=resume,
        store=store,
    )
    raise typer.Exit(characterize_and_show(options, output, as_json))


@app.command()
def report(
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids, unique prefixes, or latest (the default).")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the HTML report there.")] = None,
    as_json: JsonFlag = False,
    store: StoreOption = None,
) -> None:
    """Show stored runs as tables, or as a self-contained HTML report.

    Example: bench report latest --html report.html
    """
    from bench.verbs import report_runs

    report_runs(tuple(runs or ("latest",)), html, as_json, store)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


for verb in (gate, noise, history, profile, breakdown, submit):
    app.command()(verb)
app.command("import")(import_results)


def _add_commands_of_other_packages() -> None:
    """Verbs from the entry points ``bench.commands``: a Typer app becomes a group, a function a verb."""
    from bench.registry import command_entries

    for entry in command_entries():
        try:
            command = entry.load()
        except Exception as error:
            print(f"bench: verb {entry.name!r} ({entry.value}) cannot be loaded: {error!r}", file=sys.stderr)
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name, cls=WholeSummaries)
        else:
            app.command(entry.name)(command)


def _open_standard_streams() -> None:
    """Give closed standard streams a place to go, or the next file opened would get what is meant for them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _drop_output() -> None:
    """Send what standard output still holds nowhere, or Python would complain again when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_for(error: OSError) -> NoReturn:
    """End with one line: a disk that is full, say; never with 1, the code of a regression."""
    _drop_output()
    if isinstance(error, BrokenPipeError):
        sys.exit(EXIT_OK)
    reason = error.strerror or str(error) or type(error).__name__
    where = error.filename if error.filename is not None else "standard output"
    verb = "use" if error.filename is not None else "write"
    print(f"bench: cannot {verb} {where}: {reason}", file=sys.stderr)
    sys.exit(EXIT_NOT_MEASURED)


def _usage_text(error: Any) -> str:
    """One line for a usage error of click's, or the help of a group that was called without a verb."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    verb = error.ctx.command_path + " " if error.ctx else ""
    text = str(error.format_message()).rstrip(".")
    return f"bench: {text}{'' if text.endswith('?') else ';'} see {verb}--help"


def main() -> None:
    """Entry point: errors that a user can meet end with one line and their exit code."""
    _open_standard_streams()
    try:
        _add_commands_of_other_packages()
        status = app(args=sys.argv[1:] or ["--help"], prog_name="bench", standalone_mode=False)
        sys.stdout.flush()
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.Exit as error:
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(EXIT_NOT_MEASURED)
    except SystemExit:
        # Typer ends with 1, here the code of a regression, when whoever reads our output (head, say) has enough.
        # No verb ends this way itself.
        _drop_output()
        sys.exit(EXIT_OK)
    except OSError as error:
        _end_for(error)
    except Exception as error:
        if hasattr(error, "format_message"):  # click's own usage errors, whichever copy of click typer brings
            print(_usage_text(error), file=sys.stderr)
            sys.exit(UsageError.exit_code)
        # A fault of this program. Python would end with 1, which here means a regression.
        traceback.print_exc()
        print("bench: this is a fault in bench: please report it with the lines above", file=sys.stderr)
        sys.exit(EXIT_NOT_MEASURED)
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        sys.exit(EXIT_NOT_MEASURED)
    sys.exit(status if isinstance(status, int) else EXIT_OK)


if __name__ == "__main__":
    main()
