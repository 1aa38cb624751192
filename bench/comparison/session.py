"""A comparison from start to seal: groups of ranks for each side, turns under supervision, rows in the store."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.comparison.outcome import Outcome
from bench.comparison.processes import Record, SideProcesses
from bench.comparison.request import comparable
from bench.comparison.turns import Turns, Watcher
from bench.definitions import format_bytes
from bench.errors import StoreError, UsageError
from bench.hardware import available_memory_bytes
from bench.launch.lab import Lab, LabShape, remove_leftovers
from bench.launch.supervisor import Patience, RankProcesses
from bench.report.formatting import counted
from bench.session import (
    RANK_MEMORY_BYTES,
    InterruptedRunError,
    choose_device,
    compute_threads,
    new_record,
    signals_end_the_run,
    sites_of_group,
    too_few_gpus,
)
from bench.store.attachments import save_stacks
from bench.store.writer import RunWriter
from bench.suite import require_plain
from bench.sweep import Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.comparison.request import ComparisonRequest, Side
    from bench.launch.site import Device
    from bench.suite import ComparableSuite, Site


def compare_sides(request: ComparisonRequest, store: Path, watcher: Watcher, command: Sequence[str]) -> Outcome:
    """Measure all sides by turns, in a new run, and judge whether they may be compared.

    Raises:
        UsageError: the request cannot be met here; nothing was started.
        StoreError: the store cannot be written; nothing was started. A store that fails at the end is told in the
            outcome, so that what was measured is not lost.
    """
    suite = comparable(request.suite)
    shape = LabShape.parse(request.lab) if request.lab else None
    device = choose_device(Request(suites=(request.suite,), device=request.device, lab=request.lab))
    records = [Record(side, _sites(side, shape, device, request)[0]) for side in request.sides]
    for record in records:
        require_plain(suite.name, record.side.params)
        if record.side.params.get(suite.side_axis) != record.label:
            raise UsageError(f"the {suite.side_axis} of {record.label}'s case must be {record.label!r}, as in its rows")
        if lacking := too_few_gpus(record.site):
            raise UsageError(f"{record.label} {lacking}")
    _refuse_too_many(request, suite, records)
    run = new_record(_as_run(request), command, len(request.sides))
    run.plan = request.to_dict()
    outcome = Outcome(run.run_id, request, suite, records)
    with RunWriter(store, run) as writer:
        watcher.started(run.run_id, [record.label for record in records], Turns.stages(request))
        with signals_end_the_run():
            try:
                _measure(request, suite, records, shape, device, watcher)
            except InterruptedRunError:
                outcome.interrupted = True
        try:
            _store(outcome, writer, store, watcher)
        except StoreError as error:
            outcome.unstored = str(error)
    return outcome


def _store(outcome: Outcome, writer: RunWriter, store: Path, watcher: Watcher) -> None:
    writer.append(outcome.rows)
    for record in outcome.records:
        if record.ending and record.ending.details:
            path = save_stacks(store, outcome.run_id, record.ending.details)
            watcher.note(f"{record.label}: stacks in {path}")
    writer.seal()


def _measure(
    request: ComparisonRequest,
    suite: ComparableSuite,
    records: Sequence[Record],
    shape: LabShape | None,
    device: Device,
    watcher: Watcher,
) -> None:
    with ExitStack() as stack:
        if shape:
            for text in remove_leftovers():
                watcher.note(text)
        lab = stack.enter_context(Lab(shape)) if shape else None
        sides = [
            SideProcesses(
                record,
                request.suite,
                RankProcesses(
                    _sites(record.side, shape, device, request),
                    Patience() if request.timeout_s is None else Patience.from_timeout(request.timeout_s),
                    lab if record.side.world > 1 else None,
                    compute_threads(record.side.world),
                ),
            )
            for record in records
        ]
        try:
            Turns(request, suite, sides, watcher).run()
        except BaseException:
            for side in sides:
                side.kill()
            raise
        for side in sides:
            side.stop()


def _sites(side: Side, shape: LabShape | None, device: Device, request: ComparisonRequest) -> list[Site]:
    if shape and side.world > 1 and side.world != shape.world:
        raise UsageError(f"{side.label} is to run on {side.world} ranks, the lab {shape} has {shape.world}")
    return sites_of_group(side.world, shape, device, request.seed)


def _refuse_too_many(request: ComparisonRequest, suite: ComparableSuite, records: Sequence[Record]) -> None:
    """All sides are alive at once, unless they run apart; refuse what the host's memory does not hold."""
    needs = [
        record.side.world * (RANK_MEMORY_BYTES + (suite.memory_bytes(record.side.case, record.site) if cpu else 0))
        for record in records
        for cpu in (record.site.device == "cpu",)
    ]
    needed, free = max(needs) if request.apart else sum(needs), available_memory_bytes()
    if needed > free:
        # Where one side alone is too much, neither fewer of them nor one at a time is any help.
        fits_apart = not request.apart and max(needs) <= free
        hint = "fewer sides, or --apart: one at a time" if fits_apart else "fewer ranks or a smaller model"
        raise UsageError(
            f"{counted(len(records), 'side')} need{'s' if len(records) == 1 else ''} about {format_bytes(needed)} of"
            f" memory, {format_bytes(free)} are free; take {hint}"
        )


def _as_run(request: ComparisonRequest) -> Request:
    """What the record of a run tells of it, as of any other."""
    return Request(suites=(request.suite,), lab=request.lab, device=request.device, seed=request.seed)
