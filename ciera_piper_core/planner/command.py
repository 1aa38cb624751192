"""The verb ``bench plan``: from a model, a platform and a number of GPUs to ranked training strategies."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ciera_piper_core.completion import complete_model, complete_platform
from ciera_piper_core.models.wording import shorten

if TYPE_CHECKING:
    from ciera_piper_core.planner.explain import Explanation
    from ciera_piper_core.planner.export import Format
    from ciera_piper_core.planner.fitting import Smallest
    from ciera_piper_core.planner.range import RangePlan
    from ciera_piper_core.planner.search import Plan
    from ciera_piper_core.planner.strategy import Question


class PlanError(typer.BadParameter):
    """A wrong request; the program ends with its one line and exit code 2."""

    def format_message(self) -> str:
        return self.message


def plan(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Name of the catalogue, or path of a Hugging Face config.json.",
            autocompletion=complete_model,
        ),
    ] = None,
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            help="Built-in name (frontier, ...), or profile of `bench characterize`.",
            autocompletion=complete_platform,
        ),
    ] = "frontier",
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="N|N:M", help="GPUs; a range finds the fewest that do.")
    ] = "64",
    sequence: Annotated[int, typer.Option("--sequence", help="Tokens of a sequence.")] = 4096,
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", help="Sequences a step over all GPUs.", show_default="4 times --gpus"),
    ] = None,
    sequences_per_gpu: Annotated[
        int | None,
        typer.Option(
            "--sequences-per-gpu", help="Instead: sequences a step through each GPU; EP x DP times that in all."
        ),
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="adam, adafactor, sgd, sgd_momentum.")] = "adam",
    precision: Annotated[str, typer.Option("--precision", help="bf16 or fp16, with float32 master weights.")] = "bf16",
    flash: Annotated[bool, typer.Option("--flash/--no-flash", help="Fused attention, which keeps no scores.")] = True,
    load_factor: Annotated[
        float, typer.Option("--load-factor", help="Tokens of the busiest EP rank over the mean.")
    ] = 1.0,
    zipf: Annotated[
        float, typer.Option("--zipf", metavar="S", help="Routing by Zipf's law of that exponent; 0 for balanced.")
    ] = 0.0,
    placement: Annotated[
        str, typer.Option("--placement", help="even: EP divides the experts; uneven: ranks may hold one more.")
    ] = "even",
    convention: Annotated[str, typer.Option("--convention", help="FLOPs of MFU: 6n, causal or full.")] = "causal",
    mtp: Annotated[bool, typer.Option("--mtp/--no-mtp", help="Train the layers that predict further tokens.")] = False,
    overlap: Annotated[
        list[str] | None,
        typer.Option(
            "--overlap",
            metavar="KIND=SHARE",
            help="Share of a communication that hides: all_to_all, point_to_point, tensor_parallel, data_parallel.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="DIMENSION=VALUES", help="Restrict the search: pp=4, ep=8:64, schedule=1f1b."),
    ] = None,
    top: Annotated[int, typer.Option("--top", help="Strategies to show.", min=1)] = 10,
    explain: Annotated[int | None, typer.Option("--explain", metavar="K", help="Strategy K in detail.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")] = None,
    export: Annotated[
        int | None, typer.Option("--export", metavar="K", help="Print strategy K as settings of --format.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", help="executor, megatron, deepspeed or torchtitan.", show_default="executor"),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Compare with the Piper paper's tables and published dense results.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Find the best ways to train a mixture-of-experts model on a machine: memory, time and MFU, predicted.

    Example: bench plan --model deepseek-v3 --platform frontier --gpus 4096 --explain 1
    """
    try:
        _refuse_contradictions(paper, model, explain, html, export, format, as_json)
        if paper:
            _show_paper(as_json)
            return
        if model is None:
            from ciera_piper_core.models.catalogue import names

            raise PlanError(f"--model is needed: a config.json, or one of {', '.join(names())}")
        from ciera_piper_core.models.catalogue import model as read_model
        from ciera_piper_core.planner.imbalance import Routing
        from ciera_piper_core.planner.range import parse_gpus
        from ciera_piper_core.planner.strategy import Question, parse_only
        from ciera_piper_core.platforms import load_platform

        first, last = parse_gpus(gpus)
        question = Question(
            architecture=read_model(model),
            platform=load_platform(platform),
            gpus=last,
            sequence=sequence,
            global_batch=global_batch,
            sequences_per_gpu=sequences_per_gpu,
            optimizer=optimizer,
            precision=precision,
            flash=flash,
            routing=Routing(load_factor, zipf),
            placement=placement,  # type: ignore[arg-type]  # checked there
            convention=convention,  # type: ignore[arg-type]
            only=parse_only(only or ()),
            mtp=mtp,
            overlap=_overlap(overlap or ()),
        )
        _run(question, first, top, explain, html, export, format or "executor", as_json)  # type: ignore[arg-type]
    except ValueError as error:
        raise PlanError(str(error)) from None
    except OverflowError as error:
        raise PlanError(f"a number of this question is too large to plan with ({error})") from None


def _refuse_contradictions(
    paper: bool,
    model: str | None,
    explain: int | None,
    html: Path | None,
    export: int | None,
    format: str | None,
    as_json: bool,
) -> None:
    """Raise a ``ValueError`` where an option would have no effect, or a page no place, before anything is searched."""
    if paper and any(each is not None for each in (model, explain, html, export, format)):
        raise ValueError("--paper compares models of its own; of the other options it takes --json alone")
    if format is not None:
        from ciera_piper_core.planner.export import FORMATS

        if format not in FORMATS:
            raise ValueError(f"unknown format {shorten(format)!r}; known: {', '.join(FORMATS)}")
        if export is None:
            raise ValueError("--format belongs to --export K; add the number of a strategy, as in --export 1")
    if export is not None and as_json:
        raise ValueError("--export prints a strategy's settings alone, --json the plan; give one of them")
    if export is not None and explain is not None:
        raise ValueError("--export prints a strategy's settings alone; leave --explain out")
    if html is not None:
        from ciera_piper_core.page.frame import refuse_place

        refuse_place(html)


def _run(
    question: Question,
    first: int,
    top: int,
    number: int | None,
    html: Path | None,
    exported: int | None,
    format: Format,
    as_json: bool,
) -> None:
    """Search, then show what was asked for."""
    from ciera_piper_core.planner.explain import explain
    from ciera_piper_core.planner.fitting import smallest_gpus
    from ciera_piper_core.planner.search import search

    of_range = None
    if first < question.gpus:
        of_range = _search_range(question, first)
        answer, smallest = of_range.plan, of_range.smallest
    else:
        answer, smallest = search(question), None
    if not len(answer):
        # On how many it would fit is asked of all that the batch allows: the default batch grows with the GPUs.
        smallest = smallest_gpus(replace(question, only=_without_mesh(question)), 1, question.platform.max_gpus)
    if html is not None:
        from ciera_piper_core.planner.page import write_page

        write_page(html, answer, smallest)
        print(f"page: {html}", file=sys.stderr)
    if exported is not None:
        _print_export(answer, exported, format)
        return
    explanation = explain(answer, number) if number is not None and len(answer) else None
    if number is not None and explanation is None:
        print(f"there is no strategy {number} to explain: nothing fits", file=sys.stderr)
    if as_json:
        from ciera_piper_core.planner.record import plan_record

        rows = of_range.rows if of_range else ()
        _print_json(plan_record(answer, top, smallest_gpus=smallest, rows=rows, explanation=explanation))
        return
    _print_text(answer, top, smallest, of_range, explanation)


def _search_range(question: Question, first: int) -> RangePlan:
    """The range, with a word on standard error where somebody may be waiting."""
    from ciera_piper_core.planner.range import plan_range

    if not sys.stderr.isatty():
        return plan_range(question, first, question.gpus)
    from rich.console import Console

    with Console(stderr=True).status("planning") as status:
        return plan_range(question, first, question.gpus, lambda text: status.update(f"planning: {text}"))


def _print_text(
    answer: Plan, top: int, smallest: Smallest | None, of_range: RangePlan | None, explanation: Explanation | None
) -> None:
    from ciera_piper_core.planner import terminal

    blocks = ["\n".join(terminal.heading(answer))]
    if of_range is not None:
        blocks.append(terminal.range_table(of_range.rows, of_range.smallest))
    blocks.append(terminal.ranking(answer, top) if len(answer) else terminal.nothing_fits(answer, smallest))
    blocks.append(terminal.rejections(answer))
    if explanation is not None:
        blocks.append(terminal.explanation_text(answer, explanation))
    print("\n\n".join(block for block in blocks if block))


def _print_export(answer: Plan, number: int, format: Format) -> None:
    from ciera_piper_core.planner.export import export

    if not 1 <= number <= len(answer):
        fitting = f"1 to {len(answer)}" if len(answer) else "none: nothing fits"
        raise ValueError(f"there is no strategy {number} to export; the plan has {fitting}")
    exported = export(answer[number - 1].strategy, answer.question, format)
    print(exported.text, end="")
    for line in exported.notes:
        print(line, file=sys.stderr)


def _show_paper(as_json: bool) -> None:
    from ciera_piper_core.planner.paper import paper_record, paper_text

    if as_json:
        _print_json(paper_record())
    else:
        print(paper_text())


def _without_mesh(question: Question) -> dict[str, tuple[int | str, ...]]:
    """The question's restrictions but those that belong to its number of GPUs."""
    return {name: values for name, values in question.only.items() if name not in ("pp", "ep", "dp", "tp")}


def _overlap(texts: list[str] | tuple[str, ...]) -> Any:
    from dataclasses import fields

    from ciera_piper_core.planner.communication import Overlap

    known = [field.name for field in fields(Overlap)]
    shares: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            raise ValueError(f"--overlap takes KIND=SHARE with one of {', '.join(known)}, not {shorten(text)!r}")
        if name in shares:
            raise ValueError(f"--overlap {name} is given twice; give one share")
        try:
            shares[name] = float(value)
        except ValueError:
            raise ValueError(f"--overlap {name} takes a share from 0 to 1, not {value!r}") from None
    return Overlap(**shares)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()
