"""The verbs ``bench db ...``: list, query, export, merge, verify and compact stored runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.errors import EXIT_NOT_MEASURED, UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STORE_VARIABLE = "BENCH_STORE"
DEFAULT_STORE = Path("results/store")

db_app = typer.Typer(
    help="Stored runs: list, query with SQL, export, merge another store, verify, compact.\n\nExample: bench db list",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", envvar=STORE_VARIABLE, help="Folder of stored runs.", show_default=str(DEFAULT_STORE)),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def default_store_path() -> Path:
    """The store of ``BENCH_STORE``, else ``results/store`` in the working directory."""
    return Path(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


@db_app.command("list")
def list_runs(store: StoreOption = None, as_json: JsonFlag = False) -> None:
    """The runs of a store, by start, with their cases and their rows by status.

    A run is open while it is written (or may be, on another machine), orphaned when its writer is
    gone, and else sealed. Cases 1/44: one of 44 has rows, so it was interrupted or is still running.

    Example: bench db list
    """
    from bench.store.reader import Store

    reader = Store(store or default_store_path())
    runs = [run.to_dict() for run in reader.runs()]
    _warn(reader.torn)
    if as_json:
        _print_json(runs)
    elif not runs:
        print(f"no runs in {reader.path}; `bench run` makes one")
    else:
        _print_table([_listed(run) for run in runs])
        if partial := next((run for run in runs if run["cases_with_rows"] < run["cases"]), None):
            print(_interrupted_text(partial))


@db_app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One statement in DuckDB's SQL over the views rows and runs.")],
    store: StoreOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Query all stored rows with SQL, in place.

    The views are `rows` (the fields of a row; params is JSON) and `runs` (their records and states).
    A case is written "case", in double quotes: the word alone is SQL's own.

    Example: bench db query "select metric, median(value) from rows where params->>'$.op' = 'all_gather' group by all"
    """
    from bench.store.reader import Store

    reader = Store(store or default_store_path())
    result = reader.query(sql)
    _warn(reader.torn)
    if as_json:
        print(result.to_json(orient="records", date_format="iso", double_precision=15))
    else:
        present = result.astype(object).where(result.notna(), None)
        _print_table(present.to_dict(orient="records"), list(result.columns))


@db_app.command()
def export(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run ids, unique prefixes, latest, or all.")],
    form: Annotated[str, typer.Option("--format", "-f", help="csv, parquet, json or jsonl.")] = "csv",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="- for standard output.")] = Path("-"),
    store: StoreOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the rows of runs to one file, for other tools.

    Example: bench db export latest --format parquet -o latest.parquet
    """
    from bench.store.export import FORMATS, export, export_to_stream
    from bench.store.reader import Store

    if form not in FORMATS:
        raise unknown_name("format", form, list(FORMATS))
    to_stdout = str(output) == "-"
    if to_stdout and as_json:
        raise UsageError(
            "--json reports on a file: name one with -o FILE, or take --format json for the rows themselves"
        )
    if to_stdout and form == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal; name a file with -o FILE")
    reader = Store(store or default_store_path())
    run_ids = _resolve(reader, runs)
    if to_stdout:
        sys.stdout.flush()
        _warn(export_to_stream(reader.path, run_ids, form, sys.stdout.buffer))
        return
    torn = export(reader.path, run_ids, form, output)
    _warn(torn)
    if as_json:
        _print_json({"runs": run_ids, "format": form, "file": str(output), "torn": torn})
    else:
        print(f"{len(run_ids)} run(s) written to {output}", file=sys.stderr)


@db_app.command()
def merge(
    other: Annotated[Path, typer.Argument(metavar="OTHER_STORE", help="The store to take runs from; it is only read.")],
    store: StoreOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take all runs of another store that this one lacks: all of them or, if any differs, none.

    Example: bench db merge /scratch/node7/store
    """
    from bench.store.merge import merge

    target = store or default_store_path()
    report = merge(target, other)
    _warn(report.torn)
    if as_json:
        _print_json(report.to_dict())
        return
    print(f"{len(report.taken)} run(s) taken from {other}, {len(report.present)} were in {target} already")
    for run_id, state in report.unfinished.items():
        print(f"run {run_id} is {state} there: its rows so far were taken; merge again to take later ones")


@db_app.command()
def verify(store: StoreOption = None, as_json: JsonFlag = False) -> None:
    """Read every file and row and check them; exit code 4 if anything is wrong, with a line for each fault.

    Example: bench db verify
    """
    from bench.store.verify import verify

    report = verify(_present(store or default_store_path()), _progress)
    if as_json:
        _print_json(report.to_dict())
    else:
        for fault in report.faults:
            print(fault)
        for note in report.notes:
            print(f"note: {note}", file=sys.stderr)
        print(f"{report.files} file(s), {report.rows} row(s), {len(report.faults)} fault(s)", file=sys.stderr)
    if report.faults:
        raise typer.Exit(EXIT_NOT_MEASURED)


@db_app.command()
def compact(
    abandoned: Annotated[
        list[str] | None,
        typer.Option("--abandoned", metavar="RUN", help="Seal this run too: its writer, on another machine, is gone."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Seal orphaned runs, remove leftovers, fold small files into one. Runs that are being written stay as they are.

    Example: bench db compact
    """
    from bench.store.compact import compact
    from bench.store.reader import Store

    target = _present(store or default_store_path())
    report = compact(target, _resolve(Store(target), abandoned or []))
    if as_json:
        _print_json(report.to_dict())
        return
    print(f"{len(report.sealed)} file(s) sealed, {len(report.removed)} leftover file(s) removed")
    if report.archive:
        print(f"{len(report.folded)} files folded into {report.archive}")
    for run_id in report.left_open:
        print(f"run {run_id} is left open: it is being written, or was on another machine (then: --abandoned {run_id})")


def _present(store: Path) -> Path:
    """The store itself, if it is there: nothing was verified where a path is misspelt.

    Raises:
        UsageError: it is not.
    """
    if not store.exists() or (store.is_dir() and not (store / "runs").exists()):
        raise UsageError(f"there is no store in {store}; `bench run` makes one, --store names another")
    return store


def _resolve(reader: Any, texts: Sequence[str]) -> list[str]:
    """Run ids that the user's words stand for, each once."""
    if "all" in texts:
        return [run.run_id for run in reader.runs()]
    return list(dict.fromkeys(reader.resolve(text) for text in texts))


def _listed(run: dict[str, Any]) -> dict[str, Any]:
    """A run as a line of the table."""
    shown = {name: value for name, value in run.items() if name != "cases_with_rows"}
    # Older runs do not tell how many cases were asked for.
    cases = f"{run['cases_with_rows']}/{run['cases'] or '?'}"
    return {**shown, "suites": " ".join(run["suites"]), "cases": cases, "counts": _counts_text(run)}


def _interrupted_text(run: dict[str, Any]) -> str:
    """What a number of cases like 1/44 means, by the first run that has one."""
    from bench.report.verdict import INTERRUPTED

    done, asked = run["cases_with_rows"], run["cases"]
    way_out = f"`bench run --resume {run['run_id']}` finishes an interrupted one"
    return f"\n{done}/{asked}: {done} of {asked} cases have rows, so that run is {INTERRUPTED}; {way_out}"


def _counts_text(run: dict[str, Any]) -> str:
    return " ".join(f"{count} {status}" for status, count in run["counts"].items() if count)


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"bench: warning: {line}", file=sys.stderr)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def _print_table(records: Sequence[dict[Any, Any]], columns: Sequence[str] | None = None) -> None:
    from tabulate import tabulate

    rows = [list(record.values()) for record in records]
    print(tabulate(rows, headers=columns or list(records[0]), floatfmt=".7g"))


def _progress(files: Sequence[Path]) -> Iterable[Path]:
    """``files``, with a bar on a terminal's standard error."""
    if not sys.stderr.isatty():
        return files
    from rich.console import Console
    from rich.progress import track

    return track(files, "verifying", console=Console(stderr=True), transient=True)
