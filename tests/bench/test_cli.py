"""The program itself: help, speed of start, errors, verbs of other packages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.program import ROOT, bench, command, environment

if TYPE_CHECKING:
    from pathlib import Path

VERBS = (
    *("doctor", "list", "run", "characterize", "report", "db", "gate", "noise", "history"),
    *("profile", "breakdown", "submit", "import"),
)
HEAVY = ("torch", "numpy", "pandas", "duckdb", "plotly", "scipy", "pydantic")


def test_help_names_every_verb(tmp_path: Path) -> None:
    done = bench("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in VERBS)


def test_help_says_in_whole_sentences_what_each_verb_does(tmp_path: Path) -> None:
    for arguments in ([], ["db"]):
        text = bench(*arguments, "--help", cwd=tmp_path).stdout
        assert "..." not in text.replace("...]", "").split("Commands:")[1]
    everything = " ".join(bench("--help", cwd=tmp_path).stdout.split())
    assert "list The suites that can be run; with a name, its parameters, presets and metrics. run" in everything


@pytest.mark.parametrize("group", ["db", "simulate"])
def test_a_group_without_a_verb_shows_its_help_on_standard_error(tmp_path: Path, group: str) -> None:
    done = bench(group, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == bench(group, "--help", cwd=tmp_path).stdout
    assert f"Example: bench {group} " in done.stderr


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "db"])
def test_each_verb_has_help_with_an_example(tmp_path: Path, verb: str) -> None:
    done = bench(verb, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"Example: bench {verb}" in " ".join(done.stdout.split())
    assert "--json" in done.stdout


def test_help_and_list_load_nothing_heavy() -> None:
    code = (
        "import sys; from bench.listing import describe_suites; describe_suites(); import bench.cli;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run", "--ranks"], ["list", "--nope"], ["run", "self", "--seed", "x"]]
)
def test_wrong_words_are_one_line_with_exit_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = bench(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("bench: ")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["zzz"], "bench: No such command 'zzz'; see bench --help\n"),
        (["doctr"], "bench: No such command 'doctr'. Did you mean 'doctor'? see bench --help\n"),
        (["db", "query"], "bench: Missing argument 'sql'; see bench db query --help\n"),
    ],
)
def test_wrong_words_name_the_help_to_read(tmp_path: Path, arguments: list[str], line: str) -> None:
    assert bench(*arguments, cwd=tmp_path).stderr == line


def install(folder: Path, name: str, entry_points: str) -> str:
    """Lay out an installed package, which is a folder with metadata; returns the search path that finds it."""
    metadata = folder / f"{name}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    return f"{ROOT}:{folder}"


def test_verbs_of_other_packages_appear(tmp_path: Path) -> None:
    (tmp_path / "extra_verbs.py").write_text(
        "import typer\n"
        "def hello(name: str) -> None:\n    '''Greet.'''\n    print('hello', name)\n"
        "group = typer.Typer(help='A group.')\n"
        "@group.command()\ndef one() -> None:\n    print('one')\n"
        "@group.command()\ndef two() -> None:\n    print('two')\n"
    )
    path = install(tmp_path, "verbs", "[bench.commands]\nhello = extra_verbs:hello\nmore = extra_verbs:group\n")
    assert "hello" in bench("--help", cwd=tmp_path, PYTHONPATH=path).stdout
    assert bench("hello", "you", cwd=tmp_path, PYTHONPATH=path).stdout == "hello you\n"
    assert bench("more", "two", cwd=tmp_path, PYTHONPATH=path).stdout == "two\n"


def test_a_fault_of_a_verb_does_not_look_like_a_regression(tmp_path: Path) -> None:
    (tmp_path / "faulty_verb.py").write_text("def fail() -> None:\n    raise RuntimeError('oops')\n")
    path = install(tmp_path, "verbs", "[bench.commands]\nfail = faulty_verb:fail\n")
    done = bench("fail", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 4
    assert "RuntimeError: oops" in done.stderr
    assert "please report it" in done.stderr


@pytest.mark.parametrize("group", ["bench.commands", "bench.suites"])
def test_what_cannot_be_loaded_hides_nothing_else(tmp_path: Path, group: str) -> None:
    path = install(tmp_path, "broken", f"[{group}]\nbroken = no_such_module:thing\n")
    done = bench("list", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0
    assert "collectives" in done.stdout
    assert "'broken' (no_such_module:thing) cannot be loaded" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "first"), [("db query 'select * from range(200000)' --json", "["), ("list", "s")]
)
def test_a_reader_that_has_enough_is_no_error(tmp_path: Path, arguments: str, first: str) -> None:
    bench("run", "tests.faulty_suite:SoloSuite", "--max-time=0.02", "--select=number=0", cwd=tmp_path)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m bench.cli {arguments} | head -c 1"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (first, "", 0)


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--version"], ["--help"]])
def test_a_full_disk_is_one_line_and_no_regression(tmp_path: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*arguments),
            cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr == "bench: cannot write standard output: No space left on device\n"
