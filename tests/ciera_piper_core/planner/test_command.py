"""The verb ``bench plan`` as users call it: output, JSON, exit codes, errors, and how long it takes."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from ciera_piper_core.planner.command import plan as plan_verb
from tests.program import ROOT, bench, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHORT = ("--model", "olmoe-1b-7b", "--gpus", "4", "--sequences-per-gpu", "2")
MIXTRAL = ("--model", "mixtral-8x7b", "--gpus", "32")
STRATEGY_KEYS = """
    pp ep dp tp microbatches sequences_per_gpu schedule checkpointing zero_stage alltoall mfu hfu step_seconds
    peak_memory_bytes stage_memory_bytes
""".split()  # noqa: SIM905  # as the agreed names are written


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What ``bench plan`` prints and ends with, in this process."""
    app = typer.Typer(rich_markup_mode=None)
    app.command()(plan_verb)
    output, errors = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            get_command(app).main(list(arguments), "plan", standalone_mode=False)
        except Exception as error:
            # As bench.cli.main does with click's own usage errors.
            print(f"bench: {error.format_message()}", file=errors)  # type: ignore[attr-defined]
            status = 2
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``bench plan`` with the entry points of this checkout, whatever is installed."""
    folder = tmp_path_factory.mktemp("plan")
    metadata = folder / "plan_verb-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plan_verb\nVersion: 1\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["bench.commands"]
    lines = "\n".join(f"{name} = {value}" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[bench.commands]\n{lines}\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return bench("plan", *arguments, cwd=folder, PYTHONPATH=f"{ROOT}:{folder}")

    return run


def record_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_json_is_one_object_with_the_agreed_names() -> None:
    record = record_of(plan("--model", "mixtral-8x7b", "--gpus", "32", "--top", "3", "--json"))
    assert (record["model"], record["platform"], record["gpus"]) == ("mixtral-8x7b", "frontier", 32)
    assert record["total_parameters"] == pytest.approx(46.7e9, rel=1e-3)
    assert record["active_parameters"] == pytest.approx(12.88e9, rel=1e-2)
    assert len(record["strategies"]) == 3
    for strategy in record["strategies"]:
        assert set(STRATEGY_KEYS) <= set(strategy)
        assert 0 < strategy["mfu"] <= strategy["hfu"] <= 1
        assert max(strategy["stage_memory_bytes"]) == strategy["peak_memory_bytes"] <= 64e9
        assert len(strategy["stage_memory_bytes"]) == strategy["pp"]
    assert record["rejected"]
    assert all(set(each) == {"constraint", "count"} for each in record["rejected"])


def test_text_has_table_counts_and_explanation() -> None:
    done = plan("--model", "olmoe-1b-7b", "--gpus", "8", "--explain", "2", "--zipf", "1.2")
    assert done.returncode == 0
    for part in ("MFU: causal convention", "on the Pareto front", "ruled out by", "Strategy 2:", "Known, and how:"):
        assert part in done.stdout
    assert done.stderr == ""


def test_a_range_finds_the_smallest() -> None:
    record = record_of(plan("--model", "mixtral-8x7b", "--gpus", "4:64", "--json"))
    assert record["smallest_gpus"] == record["gpus"] == 16
    assert [row["gpus"] for row in record["range"]] == [4, 8, 16, 32, 64]
    text = plan("--model", "mixtral-8x7b", "--gpus", "4:64").stdout
    assert "smallest number of GPUs on which it fits: 16" in text


@pytest.mark.parametrize(
    ("arguments", "constraint"),
    [
        (("--model", "deepseek-v3", "--gpus", "3", "--set", "ep=3"), "experts"),
        (("--model", "qwen3-30b-a3b", "--gpus", "24", "--set", "ep=24"), "experts"),
        (("--model", "olmoe-1b-7b", "--gpus", "32", "--set", "pp=32"), "layers"),
        ((*SHORT, "--set", "pp=4", "--set", "schedule=1f1b"), "microbatches"),
        (("--model", "deepseek-v3", "--gpus", "1"), "memory"),
        (("--model", "deepseek-v3", "--gpus", "127"), "memory"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_answer(arguments: tuple[str, ...], constraint: str) -> None:
    record = record_of(plan(*arguments, "--json"))
    assert record["strategies"] == []
    assert constraint in {each["constraint"] for each in record["rejected"]}
    assert record["smallest_gpus"] is not None
    assert (record["nearest_miss"] is not None) == (constraint == "memory")
    done = plan(*arguments)
    assert done.returncode == 0
    assert "No strategy fits" in done.stdout
    assert "The smallest number of GPUs" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--model is needed"),
        (("--model", "mixtral"), "unknown model 'mixtral'"),
        (("--model", "mixtral-8x7b", "--platform", "moon"), "'moon' is neither a built-in platform"),
        (("--model", "mixtral-8x7b", "--gpus", "x"), "--gpus takes a number"),
        (("--model", "mixtral-8x7b", "--set", "pp=x"), "'x' is no whole number"),
        (("--model", "mixtral-8x7b", "--gpus", "32", "--explain", "0"), "there is no strategy 0"),
        (("--model", "mixtral-8x7b", "--gpus", "32", "--export", "1", "--format", "nemo"), "unknown format 'nemo'"),
        (("--model", "mixtral-8x7b", "--load-factor", "0.5"), "1 or more, not 0.5"),
        (("--model", "mixtral-8x7b", "--overlap", "all=1"), "--overlap takes KIND=SHARE"),
        (("--model", "mixtral-8x7b", "--top", "0"), "--top"),
        (
            (*MIXTRAL, "--global-batch", "100000000000000000000"),
            "--global-batch must be from 1 to 16777216, not 1000000",
        ),
        ((*MIXTRAL, "--global-batch", "1000000000000000000"), "--global-batch must be from 1 to 16777216"),
        ((*MIXTRAL, "--sequences-per-gpu", "1000000000000"), "--sequences-per-gpu must be from 1 to 16777216"),
        ((*MIXTRAL, "--sequences-per-gpu", "0"), "--sequences-per-gpu must be from 1 to 16777216, not 0"),
        ((*MIXTRAL, "--sequence", "100000000000000000000"), "--sequence must be from 1 to 16777216"),
        ((*MIXTRAL, "--format", "megatron"), "--format belongs to --export K"),
        ((*MIXTRAL, "--format", "nemo"), "unknown format 'nemo'; known: executor, megatron, deepspeed, torchtitan"),
        ((*MIXTRAL, "--export", "1", "--json"), "give one of them"),
        ((*MIXTRAL, "--export", "1", "--explain", "1"), "leave --explain out"),
        ((*MIXTRAL, "--set", "pp=2", "--set", "pp=4"), "--set pp is given twice"),
        ((*MIXTRAL, "--overlap", "all_to_all=1", "--overlap", "all_to_all=0.5"), "--overlap all_to_all is given twice"),
        ((*MIXTRAL, "--html", "/nonexist/x.html"), "there is no folder /nonexist"),
        ((*MIXTRAL, "--html", "/dev/null"), "it is no file"),
        ((*MIXTRAL, "--precision", "fp8"), "precision is one of bf16, fp16, not 'fp8'"),
        ((*MIXTRAL, "--precision", "fp32"), "plan with bf16 or fp16"),
        (("--paper", "--model", "mixtral-8x7b"), "--paper compares models of its own"),
        (("--model", "nonsense"), "unknown model 'nonsense'; give the path of a config.json, or one of "),
        (("--model", "mixtrl-8x7b"), "did you mean mixtral-8x7b"),
        (("--model", "x" * 5000), f"unknown model '{'x' * 60}... (5000 characters)'"),
    ],
)
def test_wrong_requests_are_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = plan(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("bench: ")
    assert message in done.stderr
    assert done.stdout == ""


def test_the_program_ends_with_one_line_and_exit_code_2(
    program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = program("--model", "mixtral")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("bench: unknown model 'mixtral'")


@pytest.mark.parametrize("option", ["--global-batch", "--sequences-per-gpu"])
def test_the_largest_batch_is_planned(option: str) -> None:
    record = record_of(plan("--model", "olmoe-1b-7b", "--gpus", "8", option, str(1 << 24), "--json"))
    assert record["strategies"]


def test_what_cannot_be_explained_is_said() -> None:
    arguments = ("--model", "deepseek-v3", "--gpus", "8", "--explain", "1")
    for done in (plan(*arguments), plan(*arguments, "--json")):
        assert done.returncode == 0
        assert done.stderr == "there is no strategy 1 to explain: nothing fits\n"


def test_json_has_numbers_of_batch_load_and_overlap() -> None:
    record = record_of(plan(*MIXTRAL, "--load-factor", "1.5", "--overlap", "all_to_all=0.5", "--json"))
    assert (record["global_batch"], record["sequences_per_gpu"]) == (128, None)
    assert (record["load_factor"], record["zipf"]) == (1.5, 0.0)
    assert record["overlap"] == {
        "all_to_all": 0.5, "point_to_point": 0.0, "tensor_parallel": 0.0, "data_parallel": 0.0,
    }  # fmt: skip
    for strategy in record["strategies"]:
        assert strategy["global_batch"] == strategy["sequences_per_gpu"] * strategy["ep"] * strategy["dp"] == 128


def test_a_profile_that_did_not_settle_is_said_in_heading_and_json() -> None:
    profile = str(ROOT / "tests" / "data" / "platform_profile_cpu.json")
    arguments = ("--model", "olmoe-1b-7b", "--gpus", "4", "--platform", profile)
    record = record_of(plan(*arguments, "--json"))
    assert record["unsettled_figures"] == record["measured_figures"] > 50
    text = plan(*arguments).stdout
    assert f"{record['unsettled_figures']} of {record['measured_figures']} measured figures did not settle" in text


def test_a_full_disk_is_one_line_and_exit_code_4(tmp_path: Path) -> None:
    code = (
        "import sys; from bench import cli; from ciera_piper_core.planner.command import plan\n"
        "cli._add_commands_of_other_packages = lambda: cli.app.command('plan')(plan)\n"
        f"sys.argv[1:] = {['plan', *MIXTRAL, '--top', '500', '--json']!r}\ncli.main()"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr == "bench: cannot write standard output: No space left on device\n"


def test_export_prints_the_settings_alone() -> None:
    settings = json.loads(plan("--model", "mixtral-8x7b", "--gpus", "32", "--export", "1").stdout)
    assert settings["gpus"] == 32
    done = plan(*MIXTRAL, "--export", "1", "--format", "deepspeed")
    assert json.loads(done.stdout)["train_batch_size"] == 128
    assert "world size 32" in done.stderr
    assert (
        "--expert-model-parallel-size"
        in plan("--model", "mixtral-8x7b", "--gpus", "32", "--export", "1", "--format", "megatron").stdout
    )


def test_a_page_is_written(tmp_path: Path) -> None:
    done = plan("--model", "mixtral-8x7b", "--gpus", "32", "--html", str(tmp_path / "plan.html"))
    assert done.returncode == 0
    assert str(tmp_path / "plan.html") in done.stderr
    assert (tmp_path / "plan.html").stat().st_size > 1e6


def test_the_papers_tables() -> None:
    record = record_of(plan("--paper", "--json"))
    assert set(record) == {"table4", "figure14", "figure10", "dense"}


def test_help_has_an_example(program: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = program("--help")
    assert done.returncode == 0
    assert "Example: bench plan" in " ".join(done.stdout.split())


@pytest.mark.alone
def test_the_command_is_quick(program: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    start = time.perf_counter()
    record_of(program("--model", "kimi-k2", "--gpus", "4096", "--explain", "1", "--json"))
    assert time.perf_counter() - start < 4


def test_planning_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom ciera_piper_core.planner.command import plan\n"
        "plan(model='olmoe-1b-7b', platform='frontier', gpus='8', top=1, explain=1)\n"
        "print([name for name in ('torch', 'scipy', 'pandas', 'pydantic', 'plotly', 'duckdb') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
