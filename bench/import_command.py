"""The verb ``bench import``: other tools' output becomes rows, which the gate, the history and reports then take."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.errors import EXIT_NOT_MEASURED, EXIT_OK, UsageError, unknown_name
from bench.importers import IMPORTERS, definitions
from bench.importers.contents import as_int, as_number
from bench.store_commands import StoreOption, default_store_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.definitions import Better
    from bench.importers.into_store import Imported, Wishes
    from bench.store.row import Value

MOST_FAULTS_SHOWN = 20
REGISTERED = (definitions.OTHER_VALUE,)
"""Importing them registers the definitions, so that every verb knows what an imported number means."""


def _complete_tool(incomplete: str) -> list[str]:
    return [tool for tool in IMPORTERS if tool.startswith(incomplete)]


def import_results(
    tool: Annotated[str, typer.Argument(help=f"One of {', '.join(IMPORTERS)}.", autocompletion=_complete_tool)],
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files that it wrote; - for standard input.")],
    params: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PARAM=VALUE", help="Add a parameter that the files do not tell: ranks=8."),
    ] = None,
    better: Annotated[
        list[str] | None,
        typer.Option("--better", metavar="METRIC=higher", help="Direction of a metric that has none: higher or lower."),
    ] = None,
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME", help="Name the machine that the files come from.")
    ] = "",
    here: Annotated[bool, typer.Option("--here", help="The files come from this machine, as it is now.")] = False,
    commit: Annotated[str, typer.Option("--commit", metavar="SHA", help="Commit of the code that was measured.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON lines on standard output.")] = False,
    store: StoreOption = None,
) -> None:
    """Take the results of another tool into the store, each file as a run; a file that is there adds nothing.

    What cannot be read is reported by line, and ends the verb with 4, as rows that failed do.

    Example: bench import nccl-tests slurm-4711.out --set scope=cluster
    """
    from bench.importers.into_store import Wishes

    if tool not in IMPORTERS:
        raise unknown_name("tool", tool, list(IMPORTERS))
    wishes = Wishes(parse_params(params or ()), parse_better(better or ()), machine, here, commit)
    raise typer.Exit(import_and_show(tool, files, wishes, store or default_store_path(), as_json))


def import_and_show(tool: str, names: Sequence[str], wishes: Wishes, store: Path, as_json: bool) -> int:
    """Import the files one after the other; rows to standard output, all else to standard error.

    Returns:
        the exit code: 4 if anything could not be read, or failed when it was measured.

    Raises:
        UsageError: a file cannot be opened; those before it are imported.
    """
    from bench.importers.into_store import import_file, imported_runs, read_bytes

    if list(names).count("-") > 1:
        raise UsageError("standard input, -, can be read once only")
    for name in names:
        if name != "-" and not Path(name).is_file():
            kind = "a folder; name the files in it" if Path(name).is_dir() else "no such file"
            raise UsageError(f"cannot read {printable(name)}: {kind}")
    known = imported_runs(store)
    # Standard input can be read once only, and a direction is checked before anything is stored.
    ahead = {name: read_bytes(name) for name in names} if wishes.better else {}
    if wishes.better:
        check_better(tool, ahead, wishes)
    results: list[Imported] = []
    for name in _progress(list(names)):
        data = ahead[name] if name in ahead else read_bytes(name)
        result = import_file(tool, name, data, wishes, store, sys.argv[1:], known)
        results.append(result)
        _tell(result)
        if as_json:
            for row in result.rows:
                print(row.to_json())
    return exit_code(results)


def exit_code(results: Sequence[Imported]) -> int:
    """0 if all that the files hold was read and measured, and they hold a number; else 4."""
    measured = any(row.status == "ok" for result in results for row in result.rows)
    return EXIT_OK if measured and all(result.is_whole for result in results) else EXIT_NOT_MEASURED


def parse_params(texts: Iterable[str]) -> dict[str, Value]:
    """Parameters from ``name=value``; whole and decimal numbers, true and false are taken for what they look like.

    Raises:
        UsageError: a text without a name or a value.
    """
    params: dict[str, Value] = {}
    for text in texts:
        name, value = _assignment("--set", text)
        whole, number = as_int(value), as_number(value)
        if value in ("true", "false"):
            params[name] = value == "true"
        elif whole is not None and "." not in value and "e" not in value.lower():
            params[name] = whole
        else:
            params[name] = value if number is None else number
    return params


def parse_better(texts: Iterable[str]) -> dict[str, Better]:
    """Directions from ``metric=higher``.

    Raises:
        UsageError: a text without a metric, or with another direction.
    """
    found: dict[str, Better] = {}
    for text in texts:
        name, value = _assignment("--better", text)
        if value == "higher":
            found[name] = "higher"
        elif value == "lower":
            found[name] = "lower"
        else:
            raise UsageError(f"--better takes METRIC=higher or METRIC=lower, not {text!r}")
    return found


def check_better(tool: str, data: Mapping[str, bytes], wishes: Wishes) -> None:
    """Refuse a direction that changes no row of any of the files, by name with their bytes.

    Raises:
        UsageError: no such metric in them, or one that has its direction; the message names those of the files.
    """
    from bench.importers.into_store import read_rows, read_source

    rows = [row for name, each in data.items() for row in read_rows(tool, read_source(name, each, wishes.params))[1]]
    metrics = {row.metric for row in rows}
    undirected = {row.metric for row in rows if row.better == "unknown"}
    # Files without any row have faults to tell, which say more.
    for metric in wishes.better if rows else ():
        if metric not in metrics:
            known = ", ".join(map(printable, sorted(metrics)))
            raise UsageError(f"--better {printable(metric)}: no such metric in the files, which have {known}")
        if metric not in undirected:
            free = ", ".join(map(printable, sorted(undirected))) or "none"
            raise UsageError(f"--better {printable(metric)}: its direction is known; metrics without one: {free}")


def printable(text: str) -> str:
    """Text for a terminal: what would act on it is escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _assignment(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.strip() or not equals or not value.strip():
        raise UsageError(f"{option} takes NAME=VALUE, not {text!r}")
    return name.strip(), value.strip()


def _tell(result: Imported) -> None:
    """Say what became of a file: faults by line, notes, then the sum."""
    name, contents = printable(result.source.name), result.contents
    faults = sorted(contents.faults, key=lambda fault: fault.line)
    for fault in faults[:MOST_FAULTS_SHOWN]:
        print(f"{name}:{fault.line}: {printable(fault.what)}", file=sys.stderr)
    if len(faults) > MOST_FAULTS_SHOWN:
        rest = ", ".join(str(fault.line) for fault in faults[MOST_FAULTS_SHOWN:])
        print(f"{name}: {len(faults) - MOST_FAULTS_SHOWN} more like these, at line {rest}", file=sys.stderr)
    for note in contents.notes:
        print(f"{name}: note: {printable(note)}", file=sys.stderr)
    if not result.rows:
        if not faults:
            print(f"{name}: no row", file=sys.stderr)
        return
    for reason, count in Counter(row.reason for row in result.rows if row.status not in ("ok", "skipped")).items():
        print(f"{name}: {count} row(s) failed: {printable(reason)}", file=sys.stderr)
    counts = Counter(row.status for row in result.rows)
    text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), key=lambda item: -item[1]))
    where = f"run {result.run_id}" if result.added else f"nothing added, run {result.run_id} has them"
    print(f"{name}: {len(result.rows)} row(s) ({text}): {where}", file=sys.stderr)


def _progress(names: list[str]) -> Iterable[str]:
    """The names, with a bar on a terminal's standard error if there are several."""
    if len(names) < 2 or not sys.stderr.isatty():
        return names
    from rich.console import Console
    from rich.progress import track

    return track(names, "importing", console=Console(stderr=True), transient=True)
