"""The verb ``bench gate``: options to sides and policy, the comparison, outputs, exit code."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.completion import complete_suite
from bench.errors import EXIT_NOT_MEASURED, EXIT_OK, UsageError, unknown_name
from bench.store_commands import StoreOption, default_store_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.gate import Frame
    from bench.gate_result import GateResult
    from bench.noise_floors import NoiseFloors
    from bench.policy import Policy

DEFAULT_POLICY = Path("ci/policy.toml")
DEFAULT_BUDGET_S = 600.0
LEAST_BUDGET_S, MOST_BUDGET_S = 1.0, 1e6


@dataclass(frozen=True)
class GateOptions:
    """The options of ``bench gate`` as typed.

    Attributes:
        outputs: where each output goes, by its name (``json``, ``markdown``, ``junit``, ``html``); ``-`` is
            standard output.
        run_options: of the runs that ``--interleave`` makes, as typed.
    """

    suites: tuple[str, ...] = ()
    baseline: str = ""
    candidate: str | None = None
    policy: Path | None = None
    across_machines: bool = False
    interleave: bool = False
    budget_s: float = DEFAULT_BUDGET_S
    build: str | None = None
    run_options: tuple[str, ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    store: Path | None = None

    @property
    def store_path(self) -> Path:
        return self.store or default_store_path()


def gate(
    suites: Annotated[
        list[str] | None,
        typer.Argument(help="Only these suites; --interleave measures them.", autocompletion=complete_suite),
    ] = None,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="RUN|REF|FILE", help="What the candidate is held against.")
    ] = "",
    candidate: Annotated[
        str | None,
        typer.Option(
            "--candidate",
            metavar="RUN|REF|FILE",
            help="What is judged: latest if left out; with --interleave the working tree.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="Thresholds and waivers.", show_default=f"{DEFAULT_POLICY}"),
    ] = None,
    dump_policy: Annotated[bool, typer.Option("--dump-policy", help="Print the policy in force and stop.")] = False,
    across_machines: Annotated[
        bool, typer.Option("--across-machines", help="Compare numbers of other machines too.")
    ] = False,
    interleave: Annotated[
        bool, typer.Option("--interleave", help="Build two git refs and measure them by turns here: A B B A.")
    ] = False,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Most time for --interleave: 600, 90s, 10m or 1h.")
    ] = "10m",
    build: Annotated[
        str | None,
        typer.Option(
            "--build", metavar="COMMAND", help="Builds a checkout for --interleave.", show_default="setuptools'"
        ),
    ] = None,
    preset: Annotated[str, typer.Option("--preset", help="Of the runs of --interleave: quick, standard, full.")] = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PARAM=VALUES", help="Of the runs of --interleave.")
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="PARAM=VALUES", help="Of the runs of --interleave.")
    ] = None,
    ranks: Annotated[str, typer.Option("--ranks", help="Of the runs of --interleave.")] = "",
    lab: Annotated[str, typer.Option("--lab", metavar="SHAPE", help="Of the runs of --interleave.")] = "",
    device: Annotated[str, typer.Option("--device", help="Of the runs of --interleave.")] = "",
    max_time: Annotated[float | None, typer.Option("--max-time", help="Of the runs of --interleave.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Of the runs of --interleave.")] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="The result as JSON; - for stdout.")
    ] = None,
    markdown_to: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="Add the result as Markdown to a file; - for stdout."),
    ] = None,
    junit_to: Annotated[str | None, typer.Option("--junit", metavar="FILE", help="The result as JUnit XML.")] = None,
    html_to: Annotated[str | None, typer.Option("--html", metavar="FILE", help="The result as a page.")] = None,
    store: StoreOption = None,
) -> None:
    """Judge a candidate against a baseline: pass, improved, regressed, inconclusive, new, missing or failed.

    A word for a side is a path that exists, else a run of the store (id, the start of one, latest), else
    a git ref whose runs are in the store. Exit code, the first that applies: 1 something regressed,
    4 something was not measured or nothing compared, 3 something is inconclusive, 0.

    Example: bench gate --baseline main --candidate latest --junit gate.xml
    """
    if dump_policy:
        print(read_policy_in_force(policy).to_toml(), end="")
        return
    options = GateOptions(
        suites=tuple(suites or ()),
        baseline=baseline,
        candidate=candidate,
        policy=policy,
        across_machines=across_machines,
        interleave=interleave,
        budget_s=parse_budget(budget),
        build=build,
        run_options=_run_options(
            {"--preset": preset, "--ranks": ranks, "--lab": lab, "--device": device},
            {"--max-time": max_time, "--rounds": rounds},
            {"--set": overrides or (), "--select": select or ()},
        ),
        outputs=tuple(
            (name, target)
            for name, target in zip(
                ("json", "markdown", "junit", "html"), (json_to, markdown_to, junit_to, html_to), strict=True
            )
            # An empty one is a variable that is not set: it is refused, not passed over.
            if target is not None
        ),
        store=store,
    )
    raise typer.Exit(gate_and_show(options))


def gate_and_show(options: GateOptions) -> int:
    """Compare, write every output, and give the exit code.

    Raises:
        UsageError: options that contradict each other, or name nothing.
    """
    _refuse_contradictions(options)
    policy = read_policy_in_force(options.policy)
    from bench.gate_output.files import refuse_unwritable, to_stdout, write_outputs

    refuse_unwritable(options.outputs)
    result = _interleaved(options, policy) if options.interleave else _stored(options, policy)
    troubles = write_outputs(options.outputs, result)
    from bench.gate_output.terminal import print_result

    # Standard output holds one thing: what was asked for there, else the table.
    print_result(result, sys.stderr if to_stdout(options.outputs) else None)
    for trouble in troubles:
        print(f"bench: {trouble}", file=sys.stderr)
    # A verdict is worth more than a file: only what would have been 0 is lost with one.
    return result.exit_code or (EXIT_NOT_MEASURED if troubles else EXIT_OK)


def read_policy_in_force(path: Path | None) -> Policy:
    """The policy of a file; without one, that of ``ci/policy.toml`` here, else the built-in one.

    Raises:
        UsageError: the file is wrong.
    """
    from bench.policy import Policy, read_policy

    if path is not None:
        return read_policy(path)
    return read_policy(DEFAULT_POLICY) if DEFAULT_POLICY.exists() else Policy()


def parse_budget(text: str) -> float:
    """Seconds from ``600``, ``90s``, ``10m`` or ``1h``.

    Raises:
        UsageError: no time, or none that a gate can have.
    """
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
    number = text[:-1] if factor else text
    seconds = -1.0
    with suppress(ValueError):
        seconds = float(number) * (factor or 1.0)
    if not LEAST_BUDGET_S <= seconds <= MOST_BUDGET_S:
        raise UsageError(
            f"--budget needs a time from {LEAST_BUDGET_S:g}s on, such as 600, 90s, 10m or 1h, not {text!r}"
        )
    return seconds


def _refuse_contradictions(options: GateOptions) -> None:
    if not options.baseline.strip():
        raise UsageError("--baseline is missing: name a run, a git ref or a file of rows; `bench db list` shows runs")
    if options.candidate is not None and not options.candidate.strip():
        raise UsageError("--candidate is empty: name a run, a git ref or a file of rows, or leave the option out")
    if options.interleave and not options.suites:
        raise UsageError("--interleave measures: name the suites, `bench list` shows them")
    if options.interleave and options.across_machines:
        raise UsageError("--interleave measures both sides here; leave --across-machines out")
    for name, given in (("--build", options.build), (" and ".join(options.run_options[:1]), options.run_options)):
        if given and not options.interleave:
            raise UsageError(f"{name.partition('=')[0]} is for the runs of --interleave; stored runs are what they are")
    from bench.gate_output.files import to_stdout

    if len(shared := to_stdout(options.outputs)) > 1:
        raise UsageError(f"{' and '.join(shared)} cannot share standard output; give files to all but one")


def _stored(options: GateOptions, policy: Policy) -> GateResult:
    from bench.gate import judge_stored
    from bench.gate_sources import load_source
    from bench.noise_floors import load_noise
    from bench.store.reader import LATEST

    candidate = load_source(options.candidate or LATEST, options.store_path)
    ours = frozenset(candidate.run_ids)
    baseline = load_source(options.baseline, options.store_path, without=ours)
    known = sorted({row.suite for side in (baseline, candidate) for row in side.rows})
    for suite in options.suites:
        if suite not in known:
            raise UsageError(f"neither side has rows of it: {unknown_name('suite', suite, known)}")
    baseline, candidate = (side.of_suites(options.suites) for side in (baseline, candidate))
    if shared := sorted({*baseline.run_ids} & {*candidate.run_ids}):
        raise UsageError(f"run {shared[0]} is on both sides: a run compared with itself says nothing")
    return judge_stored(baseline, candidate, _frame(options, policy, load_noise(options.store_path)))


def _interleaved(options: GateOptions, policy: Policy) -> GateResult:
    from bench.checkout_runs import Checkout
    from bench.environment import fingerprint, identity_digest
    from bench.gate_progress import ConsoleWatcher
    from bench.interleave import Interleaving, ended_by_signals, nothing_measured
    from bench.noise_floors import load_noise
    from bench.worktrees import build, worktrees

    store = options.store_path.resolve()
    frame = _frame(options, policy, load_noise(store, identity_digest(fingerprint())))
    watcher = ConsoleWatcher(options.budget_s)
    result: GateResult | None = None
    named = options.candidate
    labels = (options.baseline, named or "the working tree")
    try:
        with ended_by_signals(), worktrees(Path.cwd()) as trees:
            paths = [trees.checkout("baseline", options.baseline)]
            paths.append(trees.checkout("candidate", named) if named else trees.snapshot("candidate"))
            for path, label in zip(paths, labels, strict=True):
                watcher.note(f"building {label}")
                for note in build(path, options.build):
                    watcher.note(f"{label}: {note}")
            one, other = (
                Checkout(label, path, store, options.run_options) for label, path in zip(labels, paths, strict=True)
            )
            result = Interleaving(one, other, options.suites, frame, options.budget_s, watcher).run()
    except KeyboardInterrupt:
        if result is not None:  # While the checkouts were taken away.
            return result
        watcher.note("interrupted before anything was measured")
        return nothing_measured(labels, frame)
    finally:
        watcher.close()
    return result


def _frame(options: GateOptions, policy: Policy, noise: NoiseFloors) -> Frame:
    from bench.gate import Frame

    return Frame(policy, noise, options.across_machines)


def _run_options(
    texts: dict[str, str], numbers: dict[str, float | int | None], lists: dict[str, Sequence[str]]
) -> tuple[str, ...]:
    """The options of ``bench run`` that were given, as typed."""
    words = [f"{name}={text}" for name, text in texts.items() if text]
    words += [f"{name}={number}" for name, number in numbers.items() if number is not None]
    words += [f"{name}={text}" for name, given in lists.items() for text in given]
    return tuple(words)
