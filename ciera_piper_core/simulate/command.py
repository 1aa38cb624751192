"""The verb ``bench simulate``: an all-to-all on a machine that need not be there, from 2 GPUs to thousands."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ciera_piper_core.simulate.machine import Machine
    from ciera_piper_core.simulate.sweep import Point, Sweep

    Name = TypeVar("Name", bound=str)

GPUS = "2:4096"
SIZES = "8KiB:4GiB"
SKEWED_SIZES = "1MiB,16MiB,256MiB"
"""Each exchange of skewed traffic is solved by itself, which takes seconds at 1024 GPUs and more."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class SimulateError(typer.BadParameter):
    """A wrong request; the program ends with its one line and exit code 2."""

    def format_message(self) -> str:
        return self.message


@app.callback()
def simulate() -> None:
    """Predict communication at scale on a machine that need not be there."""


@app.command()
def alltoall(
    platform: Annotated[
        str,
        typer.Option("--platform", help="Built-in name (frontier, ...), machine file (.toml), or measured profile."),
    ] = "frontier",
    gpus: Annotated[str, typer.Option("--gpus", metavar="N|N:M", help="GPUs; a range doubles, commas list.")] = GPUS,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            metavar="SIZE|A:B",
            help="Bytes that each GPU sends; a range doubles, commas list.",
            show_default=f"{SIZES}; {SKEWED_SIZES} where traffic is skewed",
        ),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option("--algorithms", metavar="NAMES", help="flat, two_phase, halo_v0, ...", show_default="all"),
    ] = None,
    traffic: Annotated[
        str, typer.Option("--traffic", metavar="KINDS", help="uniform, zipf, hot_rank, ..., as the suite alltoall has.")
    ] = "uniform",
    seed: Annotated[int, typer.Option("--seed", help="Which GPUs are hot or idle under skewed traffic.")] = 0,
    calibrate: Annotated[
        str | None,
        typer.Option("--calibrate", metavar="RUN", help="Fit the terms to rows of the suite alltoall: a file of rows."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all sizes in the table.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots and the paper's figures.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print rows as JSON lines instead, as `bench run` does.")
    ] = False,
) -> None:
    """Time, speedup over flat and bottleneck of all-to-all algorithms, predicted from 2 GPUs to thousands.

    Example: bench simulate alltoall --platform frontier --gpus 2:4096 --bytes 64KiB:4GiB --html alltoall.html
    """
    try:
        sweep = _sweep(platform, gpus, sizes, algorithms, traffic, seed, calibrate, html)
        points = _predict(sweep)
        if html is not None:
            from ciera_piper_core.simulate.page import write_page

            write_page(html, sweep, points)
            print(f"page: {html}", file=sys.stderr)
        if as_json:
            _print_rows(sweep, points)
        else:
            _print_text(sweep, points, every)
    except ValueError as error:
        raise SimulateError(str(error)) from None


def _sweep(
    platform: str,
    gpus: str,
    sizes: str | None,
    algorithms: str | None,
    traffic: str,
    seed: int,
    calibrate: str | None,
    html: Path | None,
) -> Sweep:
    """The request, checked before anything is computed."""
    from ciera_piper_core.alltoall import TRAFFIC_KINDS
    from ciera_piper_core.simulate import ALGORITHMS
    from ciera_piper_core.simulate.platforms import load_machine
    from ciera_piper_core.simulate.sizes import parse_gpus, parse_sizes
    from ciera_piper_core.simulate.sweep import Sweep

    if html is not None:
        from ciera_piper_core.page.frame import refuse_place

        refuse_place(html)
    kinds = _names("--traffic", traffic, TRAFFIC_KINDS)
    counts = parse_gpus(gpus)
    wanted = parse_sizes(sizes or (SIZES if kinds == ("uniform",) else SKEWED_SIZES))
    chosen = ALGORITHMS if algorithms is None else _names("--algorithms", algorithms, ALGORITHMS)
    machine = load_machine(platform)
    if calibrate is not None:
        machine = _calibrated(machine, calibrate)
    return Sweep(machine, counts, wanted, chosen, kinds, seed)


def _names(option: str, text: str, known: Sequence[Name]) -> tuple[Name, ...]:
    """Names of a list with commas, in the order of ``known``.

    Raises:
        ValueError: an unknown one.
    """
    from ciera_piper_core.models.wording import shorten

    given = [part.strip() for part in text.split(",")]
    for name in given:
        if name not in known:
            raise ValueError(f"{option} takes {', '.join(known)}, with commas between them, not {shorten(name)!r}")
    return tuple(name for name in known if name in given)


def _calibrated(machine: Machine, run: str) -> Machine:
    raise NotImplementedError(run)


def _predict(sweep: Sweep) -> list[Point]:
    """The points, with a word on standard error where somebody may be waiting."""
    from ciera_piper_core.simulate.sweep import predict_sweep

    if not sys.stderr.isatty():
        return predict_sweep(sweep)
    from rich.console import Console

    with Console(stderr=True).status("simulating") as status:
        return predict_sweep(sweep, lambda text: status.update(f"simulating: {text}"))


def _print_text(sweep: Sweep, points: Sequence[Point], every: bool) -> None:
    from ciera_piper_core.simulate import paper
    from ciera_piper_core.simulate.table import paper_text, sweep_text

    print(sweep_text(sweep, points, every))
    if sweep.machine.name == paper.MACHINE:
        print(f"\n{paper_text(paper.compare(sweep.machine))}")


def _print_rows(sweep: Sweep, points: Iterable[Point]) -> None:
    from ciera_piper_core.simulate.record import rows

    for row in rows(points, sweep.machine, sweep.seed):
        print(json.dumps(row, separators=(",", ":"), allow_nan=False))
