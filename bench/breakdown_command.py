"""The verb ``bench breakdown``: where the time of profiler traces went."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import Annotated

import typer

from bench.errors import BenchError, UsageError
from bench.store_commands import JsonFlag  # noqa: TC001  # typer reads the annotations when it runs

TRACE_NAMES = ("*.json", "*.json.gz")


def breakdown(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE...", help="Traces of torch's profiler, one a rank, or their folder.")
    ],
    as_json: JsonFlag = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page there.")] = None,
) -> None:
    """Where the time went: computing, communication by collective and how much is exposed, idling.

    Takes what torch's profiler writes (Kineto's .json or .json.gz), of one rank or of all of them:
    NCCL and RCCL kernels on a GPU, or ops and gloo's collectives without one. Traces with marked
    steps (ProfilerStep) are shown by step.

    Example: bench breakdown rank0.json.gz rank1.json.gz
    """
    from bench.trace.breakdown import break_down_files
    from bench.trace.html import write_html
    from bench.trace.overview import Overview

    ranks = break_down_files(trace_files(traces))
    if not any(rank.whole.duration_us for rank in ranks):
        names = ", ".join(dict.fromkeys(rank.source for rank in ranks)) or "the merged trace"
        raise BenchError(
            f"{names}: nothing to break down: neither kernels nor ops with a duration; profile with"
            " torch.profiler's activities, and `bench profile SUITE` does"
        )
    overview = Overview.of(ranks)
    if html is not None:
        written = write_html(html, overview)
        print(f"page: {written}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        json.dump(overview.to_dict(), sys.stdout, indent=2)
        print()
    elif html is None:
        from rich.console import Console

        from bench.trace.terminal import render

        Console().print(render(overview), crop=False)


def trace_files(paths: list[Path]) -> list[Path]:
    """The files that were named, and those in folders that were named; each once.

    Raises:
        UsageError: a folder without traces.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for pattern in TRACE_NAMES for file in path.glob(pattern))
        # A merged trace says the same as the ranks' beside it.
        ranks = [file for file in inside if not file.name.startswith("merged.")]
        if not inside:
            raise UsageError(f"{path}: no traces ({' or '.join(TRACE_NAMES)}) in this folder")
        found += ranks or inside
    return list(dict.fromkeys(found))
