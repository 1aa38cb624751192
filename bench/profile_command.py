"""The verb ``bench profile``: selected cases under a profiler, supervised as ``bench run`` does."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path  # noqa: TC003  # typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from bench.completion import PresetOption, complete_suite
from bench.store_commands import JsonFlag, StoreOption, default_store_path

if TYPE_CHECKING:
    from bench.profiling.session import CaseProfile, Profiles
    from bench.sweep import Job


def profile(
    suite: Annotated[
        str, typer.Argument(help="A name from `bench list`, or module:Class.", autocompletion=complete_suite)
    ],
    tool: Annotated[
        str, typer.Option("--with", metavar="TOOL", help="torch (traces), py-spy (flame graphs), nsys or ncu.")
    ] = "torch",
    preset: PresetOption = "quick",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PARAM=VALUES", help="Replace a parameter's values: bytes=1KiB:1MiB."),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="PARAM=VALUES", help="Keep only the cases with these values: op=all_*."),
    ] = None,
    ranks: Annotated[str, typer.Option("--ranks", help="Ranks of multi-rank suites.")] = "",
    lab: Annotated[str, typer.Option("--lab", metavar="SHAPE", help="Emulated cluster, as in `bench run`.")] = "",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Seed of traffic and data.")] = 0,
    iterations: Annotated[int, typer.Option("--iterations", help="To trace, with torch, nsys and ncu.")] = 5,
    seconds: Annotated[float, typer.Option("--seconds", help="To sample, with py-spy; twice, once a format.")] = 3.0,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds without any progress after which a case has failed.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the files.", show_default="in the store"),
    ] = None,
    as_json: JsonFlag = False,
    store: StoreOption = None,
) -> None:
    """Profile cases of a suite: a trace of each rank and one of all, or flame graphs, or Nsight reports.

    What a profiler slows down is not measured: nothing goes into the store.

    Example: bench profile collectives --ranks 2 --select op=all_gather --set bytes=1MiB --with torch
    """
    from bench.launch.launchers import detect
    from bench.profiling.launched import profile_launched
    from bench.profiling.session import profile as run_profile
    from bench.profiling.settings import ProfileSettings
    from bench.store.row import new_run_id
    from bench.sweep import Request
    from bench.verbs import make_folder, parse_ranks

    launched = detect()
    request = Request(
        suites=(suite,),
        preset=preset,  # type: ignore[arg-type]  # Request checks it
        overrides=tuple(overrides or ()),
        select=tuple(select or ()),
        ranks=parse_ranks(ranks),
        lab=lab,
        device=device,  # type: ignore[arg-type]  # Request checks it
        seed=seed,
        timeout_s=timeout,
        rounds=1,
    )
    folder = output or (store or default_store_path()) / "profiles" / new_run_id()
    settings = ProfileSettings(tool, str(folder.absolute()), iterations, seconds)  # type: ignore[arg-type]
    if launched:
        profiles = profile_launched(launched, request, settings, ProfileConsole())
        if launched.rank:
            raise typer.Exit(profiles.exit_code)
    else:
        if output is not None:
            make_folder(output)
        profiles = run_profile(request, settings, ProfileConsole())
    for case in profiles.cases:
        # As the user named the folder; the ranks needed it from the root on.
        case.files = [folder / file.relative_to(folder.absolute()) for file in case.files]
    _show(profiles, folder, as_json, tool)
    raise typer.Exit(profiles.exit_code)


def _show(profiles: Profiles, folder: Path, as_json: bool, tool: str) -> None:
    """Name the files, each with what opens it; nothing is named that was not written."""
    if as_json:
        print(json.dumps({"folder": str(folder), "cases": [case.to_dict() for case in profiles.cases]}, indent=2))
        return
    written = [file for case in profiles.cases for file in case.files]
    for file in written:
        print(file)
    if written and tool in OPENS:
        _say(OPENS[tool].format(folder=folder))


OPENS = {
    "torch": "open merged.json.gz at https://ui.perfetto.dev; `bench breakdown {folder}` says where the time went",
    "py-spy": "open the .svg files in a browser; .stacks.txt has the same stacks as text, a line each",
    "nsys": "open the .nsys-rep files with nsys-ui, or `nsys stats FILE`",
    "ncu": "open the .ncu-rep files with ncu-ui, or `ncu --import FILE`",
}


class ProfileConsole:
    """Says on standard error what is profiled, and how it ended."""

    def case_started(self, number: int, of: int, job: Job) -> None:
        from bench.console import describe

        _say(f"{number}/{of}: {job.suite_name} {describe(job)}")

    def case_ended(self, profile: CaseProfile, seconds: float) -> None:
        from bench.console import format_duration

        cause = f": {profile.reason}" if profile.reason else ""
        _say(f"  {profile.status} in {format_duration(seconds)}{cause}")
        for remark in profile.remarks:
            _say(f"  {remark}")

    def note(self, text: str) -> None:
        _say(text)


def _say(text: str) -> None:
    # Profiling goes on when nobody is left to read about it.
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
