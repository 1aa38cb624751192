"""Reads the JSON that nccl-tests writes with ``-J``: booleans and NaN are strings in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.importers.contents import as_int, as_list, as_number, as_samples, quoted, utc
from bench.importers.definitions import NCCL_TESTS_ITERATION
from bench.importers.json_text import documents
from bench.importers.nccl_case import COLUMNS, PLACEMENTS, World, case_params, judge, library_version, op_of
from bench.variables import recorded_variables

if TYPE_CHECKING:
    from bench.importers.contents import Contents, Source
    from bench.importers.json_text import Document

KEYS = {"time": "time", "cputime": "cpu_time", "algbw": "alg_bw", "busbw": "bus_bw"}


def read(source: Source, contents: Contents) -> None:
    """Add all results of the file's documents, each of which is a start of the tool."""
    for launch, document in enumerate(documents(source.text, contents)):
        if not isinstance(document.data.get("results"), list):
            contents.fault(document.line, "no list 'results'; nccl-tests writes one with -J FILE.json")
            continue
        _read_document(source, contents, document, launch)


def _read_document(source: Source, contents: Contents, document: Document, launch: int) -> None:
    data = document.data
    config = data["config"] if isinstance(data.get("config"), dict) else {}
    arguments = data["args"] if isinstance(data.get("args"), list) else []
    op = op_of(str(arguments[0])) if arguments else str(source.options.get("op", ""))
    if not op:
        contents.fault(document.line, "nothing says which operation this is; name it with --set op=all_reduce")
        return
    world = _world(config)
    world.library = library_version(data.get("nccl_version"))
    if difference := world.report(contents):
        contents.fault(document.line, f"this is of another machine ({difference}); put it into a file of its own")
        return
    if isinstance(variables := data.get("env"), list):
        pairs = dict(str(entry).partition("=")[::2] for entry in variables)
        if kept := recorded_variables(pairs):
            contents.identity.setdefault("variables", kept)
        contents.note("of the environment in the file, only variables that decide speed and hold no secret are kept")
    contents.started_at = contents.started_at or utc(data.get("start_time"))
    warmup = as_int(config.get("warmup_iters")) or 0
    lines = document.lines_of("results")
    for number, result in enumerate(data["results"]):
        line = lines[number] if number < len(lines) else document.line
        if not isinstance(result, dict) or as_int(result.get("size")) is None:
            contents.fault(line, f"results[{number}] has no size: {quoted(result)}")
            continue
        _read_result(contents, op, result, world, line, launch, warmup)
    if not data["results"]:
        contents.fault(document.line, "the list 'results' is empty: nothing was measured")
    for error in as_list(data.get("errors")):
        contents.fault(document.line, f"the tool reports an error: {quoted(error, 200)}")
    bounds = data.get("out_of_bounds")
    if not isinstance(bounds, dict):
        contents.fault(document.line, "no 'out_of_bounds' at the end: the run broke off; what it has is kept")


def _world(config: dict[str, Any]) -> World:
    """The ranks: ``devices`` has one entry a process, of its first GPU, so others of a process are counted on."""
    world = World(gpus_a_process=(as_int(config.get("nthreads")) or 1) * (as_int(config.get("ngpus")) or 1))
    devices = config["devices"] if isinstance(config.get("devices"), list) else []
    for entry in devices:
        if not isinstance(entry, dict) or (rank := as_int(entry.get("rank"))) is None:
            continue
        description = (
            as_int(entry.get("group")) or 0,
            str(entry.get("hostname")),
            str(entry.get("device_info")).strip(),
        )
        for gpu in range(world.gpus_a_process):
            world.ranks.setdefault(rank + gpu, description)
    return world


def _read_result(
    contents: Contents, op: str, result: dict[str, Any], world: World, line: int, launch: int, warmup: int
) -> None:
    described = {"size": result["size"], **{key: result.get(key, "") for key in ("type", "redop", "root")}}
    name = str(result.get("experiment_name") or "")
    experiment = {"experiment": name} if name else {}
    for placement in PLACEMENTS:
        measured = result.get(placement)
        if measured is None:
            continue
        if not isinstance(measured, dict):
            contents.fault(line, f"{placement} is {quoted(measured)}")
            continue
        params = {**case_params(op, described, placement, world), **experiment}
        wrong = as_int(measured.get("nwrong"))
        status, reason = judge(wrong, world)
        for column, metric, definition in COLUMNS:
            key = KEYS.get(column, "")
            if key in measured:
                contents.add(
                    metric,
                    definition,
                    params,
                    measured[key],
                    status=status,
                    reason=reason,
                    wrong=wrong,
                    warmup=warmup,
                    launch=launch,
                )
        iterations = result.get(f"{placement}_per_iter")
        if isinstance(iterations, dict):
            times = iterations["times_us"] if isinstance(iterations.get("times_us"), list) else []
            samples, value, fault = as_samples(times, iterations.get("p50_us"))
            if bad := sum(as_number(time) is None for time in times):
                contents.fault(line, f"{bad} of {len(times)} times_us are no numbers")
            if fault and status == "ok":
                status, reason = "failed", fault
            contents.add(
                "iteration_time",
                NCCL_TESTS_ITERATION,
                params,
                value,
                samples=samples,
                n=len(samples),
                status=status,
                reason=reason,
                wrong=wrong,
                warmup=warmup + (as_int(iterations.get("skipped_iterations")) or 0),
                launch=launch,
            )
