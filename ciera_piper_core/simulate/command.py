"""The verb ``bench simulate``: an all-to-all on a machine that need not be there, from 2 GPUs to thousands."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from ciera_piper_core.completion import complete_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ciera_piper_core.simulate import Algorithm
    from ciera_piper_core.simulate.sweep import Point, Sweep

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
    """Predict communication at scale on a machine that need not be there.

    Example: bench simulate alltoall --platform frontier --gpus 2:4096
    """


@app.command()
def alltoall(
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            help="Built-in name (frontier, ...), machine file (.toml), measured profile, or a lab's shape.",
            autocompletion=complete_platform,
        ),
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
        str,
        typer.Option(
            "--traffic",
            metavar="KINDS",
            help="uniform, zipf, hot_rank, idle_rank, rotating_hot_rank, replay:FILE; as the suite alltoall has them.",
        ),
    ] = "uniform",
    seed: Annotated[int, typer.Option("--seed", help="Which GPUs are hot or idle under skewed traffic.")] = 0,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="RUN",
            help="Fit rates and terms to what the suite alltoall measured: a run's id, `latest`, a file of its rows,"
            " or a profile.",
        ),
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
        sweep, notes = _sweep(platform, gpus, sizes, algorithms, traffic, seed, calibrate, html)
        points = _predict(sweep)
        if html is not None:
            from ciera_piper_core.simulate.page import write_page

            write_page(html, sweep, points, notes)
            print(f"page: {html}", file=sys.stderr)
        if as_json:
            for line in notes:
                print(line, file=sys.stderr)
            _print_rows(sweep, points)
        else:
            _print_text(sweep, points, every, notes)
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
) -> tuple[Sweep, list[str]]:
    """The request, checked before anything is predicted, and what the calibration has to say."""
    from ciera_piper_core.simulate import ALGORITHMS
    from ciera_piper_core.simulate.platforms import load_machine
    from ciera_piper_core.simulate.sizes import parse_gpus, parse_sizes
    from ciera_piper_core.simulate.sweep import Sweep

    if html is not None:
        from ciera_piper_core.page.frame import refuse_place

        refuse_place(html)
    kinds = tuple(dict.fromkeys(kind.strip() for kind in traffic.split(",")))
    counts = parse_gpus(gpus)
    wanted = parse_sizes(sizes or (SIZES if kinds == ("uniform",) else SKEWED_SIZES))
    chosen = ALGORITHMS if algorithms is None else _algorithms(algorithms)
    machine, notes = load_machine(platform), []
    # So that nothing is fitted for a sweep that is refused.
    sweep = Sweep(machine, counts, wanted, chosen, kinds, seed)
    if calibrate is not None:
        from ciera_piper_core.simulate.calibrate import calibrate_from

        calibration = calibrate_from(machine, calibrate)
        sweep, notes = replace(sweep, machine=calibration.machine), calibration.describe()
    return sweep, notes


def _algorithms(text: str) -> tuple[Algorithm, ...]:
    """Algorithms of a list with commas, in the order of printing.

    Raises:
        ValueError: an unknown one.
    """
    from ciera_piper_core.models.wording import shorten
    from ciera_piper_core.simulate import ALGORITHMS

    given = [part.strip() for part in text.split(",")]
    for name in given:
        if name not in ALGORITHMS:
            raise ValueError(f"--algorithms takes {', '.join(ALGORITHMS)}, with commas, not {shorten(name)!r}")
    return tuple(name for name in ALGORITHMS if name in given)


def _predict(sweep: Sweep) -> list[Point]:
    """The points, with a word on standard error where somebody may be waiting."""
    from ciera_piper_core.simulate.sweep import predict_sweep

    if not sys.stderr.isatty():
        return predict_sweep(sweep)
    from rich.console import Console

    with Console(stderr=True).status("simulating") as status:
        return predict_sweep(sweep, lambda text: status.update(f"simulating: {text}"))


def _print_text(sweep: Sweep, points: Sequence[Point], every: bool, notes: Sequence[str]) -> None:
    from ciera_piper_core.simulate import paper
    from ciera_piper_core.simulate.table import paper_text, sweep_text

    print(sweep_text(sweep, points, every, notes))
    if sweep.machine.name == paper.MACHINE:
        print(f"\n{paper_text(paper.compare(sweep.machine))}")


def _print_rows(sweep: Sweep, points: Iterable[Point]) -> None:
    from ciera_piper_core.simulate.record import rows

    for row in rows(points, sweep.machine, sweep.seed):
        print(json.dumps(row, separators=(",", ":"), allow_nan=False))
