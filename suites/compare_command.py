"""The verb ``bench compare``: training systems by turns on this machine, compared only if they train alike.

It joins what ``bench.comparison`` measures with what a training is, and is the one file of suites that
reaches into the harness beyond the contract of suites.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, suppress
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.errors import BenchError, UsageError
from bench.store_commands import StoreOption, default_store_path
from ciera_piper_core.completion import complete_model, complete_systems

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from bench.comparison.outcome import Outcome
    from bench.comparison.request import ComparisonRequest, Side
    from bench.comparison.view import View
    from bench.suite import Value

SUITE = "end_to_end"
FEWEST_WARM_UPS = 4


def compare(
    systems: Annotated[
        str,
        typer.Option(
            "--systems",
            help="Comma separated, each with its options: fsdp,ciera,piper:pp=2:ep=2.",
            autocompletion=complete_systems,
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option("--model", help="Name of the catalogue, or path of a config.json.", autocompletion=complete_model),
    ] = "mixtral-8x7b",
    scale: Annotated[str, typer.Option("--scale", help="How much smaller: tiny, small, medium or full.")] = "tiny",
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", help="Ranks of each system; with --lab its shape says it.", show_default="2"),
    ] = None,
    lab: Annotated[
        str, typer.Option("--lab", metavar="SHAPE", help="Emulated cluster: nodes=2,ranks-per-node=2,rate=1gbit.")
    ] = "",
    steps: Annotated[int, typer.Option("--steps", help="Timed steps of each system, in turns.")] = 24,
    reference: Annotated[
        str, typer.Option("--reference", help="System that speedups are over.", show_default="the first")
    ] = "",
    check_against: Annotated[
        str,
        typer.Option(
            "--check-against",
            metavar="SYSTEM",
            help="System whose losses are right; plain trains in one process.",
            show_default="the reference",
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PARAM=VALUE", help="Of the training: precision=bf16, sequence=128, batch=16, ..."
        ),
    ] = None,
    turns: Annotated[int, typer.Option("--turns", help="Turns of each system, at most.")] = 8,
    warmup: Annotated[int, typer.Option("--warmup", help="Steps before the first turn.")] = FEWEST_WARM_UPS,
    predict: Annotated[
        Path | None,
        typer.Option(
            "--predict",
            metavar="PROFILE",
            help="Show beside each time what the planner's model predicts, from this machine's `bench characterize`.",
        ),
    ] = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="One system after the other, where memory does not hold all of them.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of weights and batches.")] = 0,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds without any progress after which a system has failed.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write rows as JSON lines; - for standard output.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Train one model with several systems by turns, and compare their speed if their losses agree.

    Exit code: 0 if all systems have a speed, 4 if one of them has none or a file could not be written, 2 for a wrong
    request.

    Example: bench compare --systems fsdp,ciera,xmoe --model olmoe-1b-7b --ranks 4 --steps 40 --html compare.html
    """
    from bench.comparison.session import compare_sides
    from bench.comparison.terminal import print_outcome

    refuse_launchers()
    if html:
        _refuse_unwritable(html)
    request = request_of(
        systems=systems,
        params=training_params(model, scale, overrides or []),
        ranks=ranks,
        lab=lab,
        steps=steps,
        reference=reference,
        check_against=check_against,
        turns=turns,
        warmup=warmup,
        apart=apart,
        device=device,
        seed=seed,
        profile=require_profile(predict),
        timeout_s=timeout,
    )
    folder = store or default_store_path()
    with ExitStack() as stack:
        rows_to = stack.enter_context(_open(json_to)) if json_to else None
        outcome = compare_sides(request, folder, _watcher(stack), sys.argv[1:])
        lost = written(outcome, view(request), html, rows_to)
    if json_to != "-":
        print_outcome(outcome, view(request))
    if not outcome.unstored:
        print(f"run {outcome.run_id}; stored in {folder}", file=sys.stderr)
    if lost:
        raise BenchError("; ".join(lost))
    raise typer.Exit(outcome.exit_code)


def require_profile(path: Path | None) -> str:
    """The file of the profile as ranks find it, or nothing; a warning if it is not of this machine.

    Raises:
        UsageError: it cannot be read, or has not what a prediction needs.
    """
    from bench.environment import fingerprint, identity_differences
    from ciera_piper_core.platforms import load_platform

    if path is None:
        return ""
    file = path / "profile.json" if path.is_dir() else path
    try:
        load_platform(str(file))
        profile = json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise UsageError(f"--predict: {error}") from None
    if differences := identity_differences(profile, fingerprint()):
        print(
            f"note: {file} is of another machine or set-up ({differences[0]}), and so are messages in predictions",
            file=sys.stderr,
        )
    return str(file.absolute())


def training_params(model: str, scale: str, overrides: list[str]) -> dict[str, Value]:
    """The parameters that all sides have in common.

    Raises:
        UsageError: an unknown parameter, or a value that it cannot have.
    """
    from suites.end_to_end import EndToEndSuite
    from suites.training_case import DEFAULTS

    suite = EndToEndSuite()
    params = {**DEFAULTS, "model": model, "scale": scale}
    for text in (f"model={model}", f"scale={scale}", *overrides):
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"--set takes PARAM=VALUE, not {text!r}")
        axis = suite.axis(name)
        if name in ("system", "ranks"):
            raise UsageError(f"--set {name}: that is what --{'systems' if name == 'system' else name} says")
        values = axis.parse(value)
        if len(values) != 1:
            raise UsageError(f"all systems train alike, so {name} has one value, not {len(values)}")
        params[name] = values[0]
    _refuse_missing(params)
    return params


def _refuse_missing(params: Mapping[str, Value]) -> None:
    """What all sides read must be there, or every one of them would be skipped.

    Raises:
        UsageError: there is no such model or file.
    """
    from ciera_piper_core.models import catalogue

    try:
        catalogue.model(str(params["model"]))
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from None
    for name in ("corpus", "tokenizer"):
        if params[name] and not os.path.exists(str(params[name])):
            raise UsageError(f"{name}: there is no {params[name]}; name a file or folder")


def request_of(
    *,
    systems: str,
    params: dict[str, Value],
    ranks: int | None,
    lab: str,
    steps: int,
    reference: str,
    check_against: str,
    **more: Any,
) -> ComparisonRequest:
    """The comparison that the options ask for.

    Raises:
        UsageError: says which option is wrong.
    """
    from bench.comparison.request import ComparisonRequest, Side
    from bench.launch.lab import LabShape
    from suites.training_case import require_system

    labels = [label.strip() for label in systems.split(",") if label.strip()]
    if not labels:
        from ciera_piper_core.systems import system_names

        raise UsageError(f"--systems is needed, for example fsdp,ciera; known: {', '.join(system_names())}")
    if lab and ranks is not None:
        raise UsageError("--lab gives the number of ranks by its shape; leave --ranks out")
    world = LabShape.parse(lab).world if lab else 2 if ranks is None else ranks
    if world < 1:
        raise UsageError(f"--ranks needs a whole number from 1 up, not {ranks}")
    for label in (*labels, *(text for text in (reference, check_against) if text)):
        require_system(label)

    # The same batch for all, also for a side that runs on another number of ranks.
    batch = params["batch"] or world * int(params["microbatches"])

    def side(label: str, on: int, timed: bool) -> Side:
        return Side(label, {**params, "batch": batch, "system": label, "ranks": on, "steps": steps}, on, timed)

    sides = [side(label, world, timed=True) for label in labels]
    if check_against and check_against not in labels:
        sides.append(side(check_against, 1 if check_against == "plain" else world, timed=False))
    return ComparisonRequest(
        suite=SUITE,
        sides=tuple(sides),
        reference=reference or labels[0],
        checked_against=check_against,
        steps=steps,
        lab=lab,
        **more,
    )


def view(request: ComparisonRequest) -> View:
    """What is shown of a comparison of systems."""
    from bench.comparison.view import Column, Matrix, View

    params = request.sides[0].params
    return View(
        title=f"Training systems: {params['model']}, {params['scale']}",
        side="system",
        columns=(
            Column("tokens/s", "tokens_per_second", bare=True),
            Column("MFU", "mfu", share=True),
        ),
        further=(
            Column("HFU", "hfu", share=True),
            Column("wire bytes", "wire_bytes", {"collective": "total"}),
            Column("peak memory", "peak_memory"),
            Column("exposed communication", "exposed_communication"),
            Column("residual", "residual_share", share=True),
        ),
        matrices=(
            Matrix(
                "Bytes on the wire of a step",
                "wire_bytes",
                "collective",
                "Sent by all ranks together, by kind of message, counted as nccl-tests does.",
            ),
        ),
        curves={"loss": "nats a token"},
        parts="Where a step's time goes",
        remarks=_remarks(request),
    )


def _remarks(request: ComparisonRequest) -> tuple[str, ...]:
    gpu = request.device == "cuda"
    remarks = [
        "MFU and HFU: FLOPs of the model with causal attention, 3 times the forward pass, HFU with what is computed "
        "again; over "
        + ("the data sheets' peaks." if gpu else "the largest matrix product that all ranks reach at the same time."),
        "Breakdown, bytes and exposed communication are of further steps, with instruments.",
    ]
    if request.apart:
        remarks.append("The systems ran one after the other, so what the machine did meanwhile is in the speedups.")
    return tuple(remarks)


def refuse_launchers() -> None:
    """Turns need processes of each system's own, so they cannot be those that a launcher started.

    Raises:
        UsageError: this is a rank of a launcher.
    """
    from bench.launch.launchers import detect

    launched = detect()
    if launched and launched.world > 1:
        raise UsageError(
            f"bench compare starts the ranks of every system itself, on this machine; under {launched.launcher} measure"
            " one at a time: bench run end_to_end --set system=fsdp,ciera"
        )


def _refuse_unwritable(page: Path) -> None:
    """Before anything is measured.

    Raises:
        UsageError: no page can be written there.
    """
    place = page.absolute()
    above = next(folder for folder in place.parents if folder.exists())
    if place.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"cannot write {page}: --html takes a file in a folder that can be written")


def written(outcome: Outcome, shown: View, page: Path | None, rows_to: TextIO | None) -> list[str]:
    """Write page and rows; what could not be written or stored, a sentence each: one must not cost the others."""
    lost = [outcome.unstored] if outcome.unstored else []
    if page:
        from bench.comparison.page import write_page

        try:
            print(f"page: {write_page(page, outcome, shown)}", file=sys.stderr)
        except BenchError as error:
            lost.append(str(error))
    if rows_to:
        try:
            rows_to.write("".join(f"{row.to_json()}\n" for row in outcome.rows))
            rows_to.flush()
        except OSError as error:
            if rows_to is sys.stdout:
                raise
            lost.append(f"cannot write {rows_to.name}: {error.strerror}")
            # What is still in the buffer would fail again when the caller closes it.
            with suppress(OSError):
                rows_to.close()
    return lost


def _open(target: str) -> Any:
    """The file of ``--json``, opened before anything is measured."""
    from contextlib import nullcontext

    if target == "-":
        return nullcontext(sys.stdout)
    try:
        return open(target, "w")  # the caller closes it
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error


def _watcher(stack: ExitStack) -> Any:
    from bench.comparison.console import ConsoleWatcher

    return stack.enter_context(ConsoleWatcher())
