"""The verb ``bench gain``: which shards of a traced run are worth compressing on a measured platform, and why."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import Annotated

import typer

from ciera_piper_core.models.wording import shorten

UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
         "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # fmt: skip
SHOWN = 40


class GainError(typer.BadParameter):
    """A wrong request; the program ends with its one line and exit code 2."""

    def format_message(self) -> str:
        return self.message


def gain(
    trace: Annotated[Path, typer.Argument(help="Change-rate trace of a run (docs/gain.md says how to record one).")],
    profile: Annotated[
        Path, typer.Option("--profile", metavar="PATH", help="Profile of `bench characterize`, or its folder.")
    ],
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="BYTES", help="Most memory of a rank for caches: 512MiB.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, help="Ranks that gather.", show_default="the trace's")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Nodes that they are on.", show_default="the fewest measured")
    ] = None,
    scope: Annotated[str | None, typer.Option("--scope", help="Where they talk: loopback, node, lab, cluster.")] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="Of the codec rows.", show_default="the fastest")
    ] = None,
    isa: Annotated[
        str | None, typer.Option("--isa", help="Instruction level of them.", show_default="the fastest")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of them.", show_default="the fewest")
    ] = None,
    pipelined: Annotated[
        bool,
        typer.Option("--pipelined/--not-pipelined", help="Encoding is hidden behind other work, on idle cores."),
    ] = False,
    margin: Annotated[float, typer.Option("--margin", help="Share of a gather's time that it must gain.")] = 0.10,
    top: Annotated[int, typer.Option("--top", min=0, help="Shards to list; 0 for all.")] = SHOWN,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Say which shards to compress: bytes saved, times, gain and verdict of each, predicted from measurements.

    Example: bench gain trace.json --profile profile.json --budget 2GiB
    """
    try:
        from ciera_piper_core.allgather.change_trace import ChangeTrace
        from ciera_piper_core.allgather.gain import select_shards
        from ciera_piper_core.allgather.gain_report import gain_record, gain_text
        from ciera_piper_core.allgather.profile_model import ModelChoice, load_gain_model

        limit = None if budget is None else parse_budget(budget)
        recorded = ChangeTrace.load(trace)
        dtypes = sorted({gather.dtype for gather in recorded.gathers})
        if len(dtypes) > 1:
            raise ValueError(
                f"the trace {trace} mixes {' and '.join(dtypes)}; kernel times are of one type, so split it"
            )
        choice = ModelChoice(ranks or recorded.world, nodes, scope, backend, isa, threads, pipelined, margin)
        model = load_gain_model(profile, dtypes[0], choice)
        selection = select_shards(recorded.traffic(), model, limit)
        if choice.ranks != recorded.world:
            print(
                f"the trace is of {recorded.world} ranks; shards are taken to be of the same size on {choice.ranks}",
                file=sys.stderr,
            )
        source = recorded.source or str(trace)
        if as_json:
            json.dump(gain_record(selection, model, source), sys.stdout, indent=2, allow_nan=False)
            print()
        else:
            print(_printable(gain_text(selection, model, source, top or None)))
    except ValueError as error:
        raise GainError(str(error)) from None


def _printable(text: str) -> str:
    """What a trace's names could tell a terminal to do is spelled out."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)


def parse_budget(text: str) -> int:
    """Bytes from ``4096``, ``512MiB`` or ``2GB``.

    Raises:
        ValueError: no size; a bare ``1M`` is refused, since it is read both ways.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text) if len(text) < 40 else None
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"--budget takes bytes such as 4096, 512MiB or 2GB, not {shorten(text)!r}")
    return int(float(match[1]) * unit)
