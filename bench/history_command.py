"""The verb ``bench history``: how a metric went from run to run, and since which commits it is another."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import Annotated

import typer

from bench.store_commands import JsonFlag, StoreOption, default_store_path


def history(
    metric: Annotated[str, typer.Argument(help="Name of a metric, such as latency or busbw.")],
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="PARAM=VALUES", help="Only cases with these values: op=all_*, bytes=1MiB."),
    ] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Only of this suite.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DATE|RUN", help="Show what came since then; all of it is still judged."),
    ] = None,
    significance: Annotated[
        float, typer.Option("--significance", help="Chance of any false alarm in 40 new points, over all series.")
    ] = 0.005,
    min_effect: Annotated[
        float, typer.Option("--min-effect", help="Least relative change that is worth telling; 0.01 is 1 %.")
    ] = 0.01,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page of plots there.")] = None,
    fail_on_regression: Annotated[
        bool,
        typer.Option("--fail-on-regression", help="Exit 1 on a confirmed regression that stands, 3 on a suspected."),
    ] = False,
    as_json: JsonFlag = False,
    store: StoreOption = None,
) -> None:
    """Show a metric from run to run: trend, change points, and the commits between which each came.

    A series is one case, measured in one way on one machine: a new method version, or another machine, begins
    a new one. Runs that failed, or lack the case, are gaps. The steps are judged as docs/history.md says.

    Example: bench history busbw --where op=all_reduce --html history.html
    """
    from bench.gate_output.text import visible
    from bench.history import exit_code, read_history
    from bench.stats.change_points import Settings
    from bench.store.reader import Store

    settings = Settings(significance=significance, minimum_effect=min_effect)
    found = read_history(Store(store or default_store_path()), metric, where or (), suite, since, settings)
    for note in found.notes:
        print(f"bench: warning: {visible(note)}", file=sys.stderr)
    if html is not None:
        from bench.history_output.page import write_page

        write_page(html, found)
        print(f"history written to {html}", file=sys.stderr)
    if as_json:
        from bench.history_output.as_json import to_dict

        json.dump(to_dict(found), sys.stdout, indent=2)
        print()
    else:
        from bench.history_output.terminal import print_history

        print_history(found)
    if fail_on_regression:
        raise typer.Exit(exit_code(found))
