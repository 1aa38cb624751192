"""What the documents say is true: links lead somewhere, commands exist, examples run, tables are complete."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from bench import errors
from bench.cli import app
from bench.measure.rounds import ROUNDS
from bench.measure.sampling import Sampling, StopReason
from bench.store.row import STATUSES
from bench.suite import PRESETS, Scope
from bench.sweep import Request, make_sweep
from bench.verbs import characterizing_suites, parse_ranks

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted((ROOT / "ci").rglob("*.sbatch"))
README = (ROOT / "README.md").read_text()
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIST_DEFINITIONS = """
import json, pkgutil, sys
from importlib import import_module
import bench, suites
from bench.definitions import DEFINITIONS
for package in (bench, suites):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
print(json.dumps([(one.id, one.unit, one.better, one.text) for one in DEFINITIONS.values()]))
"""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def all_verbs() -> typer.Typer:
    """The program with the verbs of this checkout's other packages, whatever is installed."""
    verbs = typer.Typer()
    verbs.registered_commands = list(app.registered_commands)
    verbs.registered_groups = list(app.registered_groups)
    for name, reference in ENTRY_POINTS["bench.commands"].items():
        module, _, function = reference.partition(":")
        command = getattr(import_module(module), function)
        if isinstance(command, typer.Typer):
            verbs.add_typer(command, name=name)
        else:
            verbs.command(name)(command)
    return verbs


class Command(NamedTuple):
    """A call of ``bench`` in a document: the file's name, the line, and the words after ``bench``."""

    file: str
    line: str
    arguments: list[str]


def commands_in(name: str, text: str) -> list[Command]:
    """The calls of ``bench`` in a shell script, whatever launches them."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for number, word in enumerate(words):
            if word == "bench" or word.endswith("/bench"):
                arguments = words[number + 1 :]
                end = next((i for i, w in enumerate(arguments) if w in ("&&", "||", "|", ";", ">")), len(arguments))
                found.append(Command(name, line.strip(), arguments[:end]))
    return found


def documented_commands() -> list[Command]:
    blocks = [
        (document.name, body)
        for document in DOCUMENTS
        for language, body in FENCE.findall(document.read_text())
        if language == "bash"
    ]
    scripts = [(script.name, script.read_text()) for script in SCRIPTS]
    return [command for name, text in blocks + scripts for command in commands_in(name, text)]


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, made as GitHub makes them."""
    text = FENCE.sub("", document.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for target in LINK.findall(FENCE.sub("", document.read_text())):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


def test_the_index_names_every_page() -> None:
    index = LINK.findall((ROOT / "docs" / "README.md").read_text())
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages - set(index) == set()


@pytest.mark.parametrize("command", documented_commands(), ids=lambda command: f"{command.file}: {command.line}")
def test_commands_would_run(command: Command) -> None:
    verb, arguments = get_command(all_verbs()), list(command.arguments)
    while isinstance(verb, TyperGroup):
        context = verb.make_context("bench", arguments[:1])
        _, verb, arguments = verb.resolve_command(context, arguments)
    assert verb is not None
    options = verb.make_context(verb.name, arguments).params
    if command.arguments[0] in ("run", "characterize") and "permute" not in command.arguments:
        assert make_sweep(request_from(options)), "nothing to measure"


def request_from(options: dict[str, Any]) -> Request:
    """What ``bench run`` or ``bench characterize`` makes of its options."""
    return Request(
        suites=tuple(options.get("suites") or characterizing_suites()),
        preset=options["preset"],
        overrides=tuple(options["overrides"] or ()),
        select=tuple(options["select"] or ()),
        ranks=parse_ranks(options["ranks"]),
    )


def test_set_up_is_two_commands_of_one_line() -> None:
    lines = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(lines) == 2
    characterize, tests = lines
    assert characterize.endswith("bench characterize --preset quick")
    # .ci/run takes this very line out of the README and runs it.
    assert "pytest" in tests
    assert not any(line.endswith("\\") for line in lines)


def test_readme_lists_every_verb() -> None:
    listed = set(re.findall(r"^\| `bench (\w+)", README, re.MULTILINE))
    verbs = all_verbs()
    offered = {command.name or command.callback.__name__ for command in verbs.registered_commands if command.callback}
    assert listed == offered | {group.name for group in verbs.registered_groups}


def test_readme_gives_the_exit_codes() -> None:
    said = {int(code) for code in re.findall(r"\d", README.split("Exit codes:")[1].split(".")[0])}
    assert said == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_measuring_page_is_complete() -> None:
    # A process of its own: suites that other tests make up define numbers too.
    listed = subprocess.run(
        [sys.executable, "-c", LIST_DEFINITIONS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    text = (ROOT / "docs" / "measuring.md").read_text()
    described = re.findall(r"^\| `([\w-]+/[\w-]+)` \| (\S+) \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    assert sorted(described) == sorted(map(tuple, json.loads(listed.stdout)))
    assert [word for word in (*StopReason, *STATUSES, *PRESETS, *get_args(Scope)) if f"`{word}`" not in text] == []


def test_characterize_page_lists_what_is_measured() -> None:
    text = (ROOT / "docs" / "characterize.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", text, re.MULTILINE)) - {*PRESETS} == {*characterizing_suites()}


def test_measuring_page_gives_the_presets() -> None:
    text = (ROOT / "docs" / "measuring.md").read_text()
    for preset in PRESETS:
        settings = Sampling.from_preset(preset)
        times = (settings.warmup_time_ns, settings.min_time_ns, settings.max_time_ns)
        columns = [
            f"`{preset}`",
            *(f"{nanoseconds / 1e9:g} s" for nanoseconds in times),
            f"{settings.min_samples} to {settings.max_samples}",
            f"{settings.target:.1%}".replace(".0%", "%").replace("%", " %"),
            str(ROUNDS[preset]),
        ]
        assert f"| {' | '.join(columns)} |" in text


def example_files(document: Path) -> dict[str, str]:
    """Text of each file that the document shows as `` `name`: `` followed by a block."""
    pattern = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return dict(pattern.findall(document.read_text()))


def test_the_suite_in_contributing_runs(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name, text in example_files(ROOT / "CONTRIBUTING.md").items():
        (source / name).write_text(text)
    install = ["pip", "-q", "install", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *install, str(source)], check=True, timeout=60)

    call = [sys.executable, "-c", "from bench.cli import main; main()"]
    env = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    arguments = ["run", "permute", "--preset", "quick", "--json", "-"]
    done = subprocess.run([*call, *arguments], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["params"]["row_bytes"], row["metric"]) for row in rows} == {
        (size, metric) for size in (4096, 16384) for metric in ("latency", "rate")
    }
    assert {(row["status"], row["wrong"]) for row in rows} == {("ok", 0)}
