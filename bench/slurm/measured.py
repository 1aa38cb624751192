"""The call of ``bench`` that a job makes: checked before it is submitted, and as a restarted job makes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.slurm.options import JobOptions

VERBS = ("run", "characterize")
EXAMPLE = "bench submit --slurm nodes=2,ranks-per-node=4,time=0:30:00 -- run collectives"


@dataclass(frozen=True)
class MeasuredCommand:
    """What a job's ranks do; the script adds the store.

    Attributes:
        verb: run or characterize.
        first: its further arguments at the job's first start.
        again: those of a later start; the id of the run to go on with follows them.
    """

    verb: str
    first: tuple[str, ...]
    again: tuple[str, ...]

    @classmethod
    def parse(cls, arguments: Sequence[str], options: JobOptions, store: Path) -> MeasuredCommand:
        """The call as typed, after every check that can be made without the nodes.

        Raises:
            UsageError: a verb that measures nothing, or what that verb would refuse.
        """
        if not arguments:
            raise UsageError(f"say what the job runs, after --: {EXAMPLE}")
        verb, *rest = arguments
        if verb not in VERBS:
            raise unknown_name("verb for a job", verb, list(VERBS))
        given, typed = _parse(verb, rest)
        if "store" in typed:
            raise UsageError("give --store before the --, so that the job's script and rows are in one place")
        if "json_to" in typed:
            raise UsageError(
                "leave --json FILE out: a job's rows are in the store, and `bench report --json` gives them"
            )
        output = ("--output", str(given["output"])) if given.get("output") else ()
        again = (*output, "--resume")
        _check(verb, given, typed, options)
        if given["resume"] is None:
            return cls(verb, tuple(rest), again)
        from bench.store.reader import Store

        return cls(verb, (*again, Store(store).resolve(given["resume"])), again)


def _parse(verb: str, arguments: list[str]) -> tuple[dict[str, Any], set[str]]:
    """The verb's options by name, and the names of those that were typed."""
    from typer.main import get_command

    from bench.cli import app

    command: Any = get_command(app)
    context = command.commands[verb].make_context(f"bench {verb}", list(arguments))
    typed = {name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"}
    return dict(context.params), typed


def _check(verb: str, given: dict[str, Any], typed: set[str], options: JobOptions) -> None:
    """Refuse now what the job would refuse after its time in the queue."""
    from bench.launch.lab import LabShape
    from bench.sweep import make_sweep
    from bench.verbs import RunOptions, characterizing_suites

    if given["resume"] is not None:
        if typed - {"resume", "output"}:
            raise UsageError("--resume goes on with what the run was asked for; leave suites and other options out")
        return
    request = RunOptions(
        suites=tuple(given.get("suites") or ()) if verb == "run" else characterizing_suites(),
        preset=given["preset"],
        overrides=tuple(given["overrides"] or ()),
        select=tuple(given["select"] or ()),
        ranks=given["ranks"],
        lab=given["lab"],
        device=given["device"],
        seed=given["seed"],
        max_time_s=given["max_time"],
        rounds=given["rounds"],
        timeout_s=given["timeout"],
    ).request()
    shape = LabShape.parse(request.lab) if request.lab else None
    if options.world == 1:
        make_sweep(request, shape.world if shape else None)
        return
    world = f"nodes={options.nodes},ranks-per-node={options.ranks_per_node} is a world of {options.world}"
    if shape:
        raise UsageError(f"--lab starts its own ranks, but {world}; leave both at 1")
    if request.ranks and request.ranks != (options.world,):
        raise UsageError(f"--ranks {given['ranks']} was asked for, but {world}; leave --ranks out")
    if not any(job.suite.distributed for job in make_sweep(request)):
        raise UsageError(f"{request.suites[0]!r} runs in one process, but {world}; leave both at 1")
    make_sweep(replace(request, ranks=(options.world,)))
