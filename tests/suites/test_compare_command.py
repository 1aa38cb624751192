"""The verb ``bench compare``: its options, real systems by turns, and a system that another package brings."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import UsageError
from suites import compare_command
from suites.compare_command import refuse_launchers, request_of, training_params, view, written
from tests.bench.comparison.made_up import VIEW, outcome
from tests.program import ROOT, bench, json_lines

if TYPE_CHECKING:
    from pathlib import Path

NAMED = ("system", "model", "scale", "ranks", "nodes", "scope", "precision", "steps")
"""Parameters that every row has."""
METRICS = {
    "iteration_time",
    "speedup",
    "mfu",
    "hfu",
    "tokens_per_second",
    "wire_bytes",
    "peak_memory",
    "exposed_communication",
    "loss_difference",
    "residual_share",
}
SMALL = ("--steps", "4", "--turns", "2", "--ranks", "2", "--set", "sequence=32", "--set", "batch=4")


def request(**changes: Any) -> Any:
    given: dict[str, Any] = {
        "systems": "fsdp,ciera-off",
        "params": training_params("mixtral-8x7b", "tiny", []),
        "ranks": None,
        "lab": "",
        "steps": 8,
        "reference": "",
        "check_against": "",
    }
    return request_of(**{**given, **changes})


def test_the_first_system_is_the_reference_and_all_train_the_same() -> None:
    asked = request(ranks=4)
    assert asked.reference == "fsdp"
    first, second = asked.sides
    different = {name for name in first.params if first.params[name] != second.params[name]}
    assert different == {"system"}
    assert (first.world, first.params["ranks"], first.params["batch"]) == (4, 4, 4)


def test_the_plain_model_checks_on_one_rank_with_the_same_batch() -> None:
    plain = request(ranks=4, check_against="plain").sides[-1]
    assert (plain.label, plain.world, plain.timed) == ("plain", 1, False)
    assert (plain.params["ranks"], plain.params["batch"]) == (1, 4)


def test_a_lab_gives_the_ranks() -> None:
    assert request(lab="nodes=3,ranks-per-node=2,rate=1gbit").sides[0].world == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"systems": ""}, "--systems is needed"),
        ({"systems": "fsdp,fsdp"}, "fsdp is there twice"),
        ({"systems": "fdsp"}, "unknown system 'fdsp'"),
        ({"systems": "fsdp,fsdp:x=1"}, "no option 'x'; it has: reshard"),
        ({"check_against": "plane"}, "unknown system 'plane'"),
        ({"reference": "xmoe"}, "unknown side 'xmoe'"),
        ({"ranks": 2, "lab": "nodes=2,ranks-per-node=1,rate=1gbit"}, "leave --ranks out"),
        ({"ranks": -1}, "--ranks"),
        ({"ranks": 0}, "--ranks needs a whole number from 1 up, not 0"),
        ({"steps": 0}, "--steps"),
    ],
)
def test_wrong_requests_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        request(**changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("precision=fp8", "unknown value 'fp8' of precision"),
        ("precision", "PARAM=VALUE"),
        ("hidden=3", "unknown parameter 'hidden' of suite 'end_to_end'"),
        ("precision=fp32,bf16", "one value, not 2"),
        ("model=mixtrel-8x7b", "unknown model 'mixtrel-8x7b'; did you mean mixtral-8x7b"),
        ("corpus=/nowhere/at/all", "corpus: there is no /nowhere/at/all"),
        ("tokenizer=/nowhere.json", r"tokenizer: there is no /nowhere\.json"),
        ("ranks=2", "--ranks"),
        ("system=fsdp", "--systems"),
    ],
)
def test_wrong_settings_are_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        training_params("mixtral-8x7b", "tiny", [text])


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path, tmp_path / "file" / "page.html"):
        done = bench("compare", "--systems", "fsdp", "--html", str(wrong), cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "--html takes a file in a folder that can be written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("lacking", ["page", "rows", "store"])
def test_what_cannot_be_written_costs_nothing_else(tmp_path: Path, lacking: str) -> None:
    found = outcome({"a": 0.3, "b": 0.2})
    # A folder in its place, a disk that is full.
    page = tmp_path if lacking == "page" else tmp_path / "page.html"
    rows = open("/dev/full" if lacking == "rows" else tmp_path / "rows.jsonl", "w")  # noqa: SIM115
    if lacking == "store":
        found.unstored = "cannot write the store"
    lost = written(found, VIEW, page, rows)
    assert len(lost) == 1
    rows.close()
    assert (tmp_path / "page.html").exists() == (lacking != "page")
    assert (tmp_path / "rows.jsonl").exists() == (lacking != "rows")
    if lacking != "rows":
        assert len(json_lines((tmp_path / "rows.jsonl").read_text())) == len(found.rows)


def test_settings_replace_defaults() -> None:
    params = training_params("qwen3-235b-a22b", "small", ["precision=bf16", "learning_rate=0.01"])
    assert (params["model"], params["scale"], params["precision"], params["learning_rate"]) == (
        "qwen3-235b-a22b",
        "small",
        "bf16",
        0.01,
    )


def test_every_shown_metric_is_one_of_the_suite() -> None:
    from suites.end_to_end import EndToEndSuite

    shown = view(request())
    named = {column.metric for column in (*shown.columns, *shown.further)} | {one.metric for one in shown.matrices}
    assert named <= {metric.name for metric in EndToEndSuite.metrics}


def test_under_a_launcher_it_says_what_to_run_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(UsageError, match="bench run end_to_end"):
        refuse_launchers()


def test_the_file_says_that_it_is_the_exception() -> None:
    assert "one file of suites" in (compare_command.__doc__ or "")


@pytest.mark.slow
def test_real_systems_are_compared_and_a_refused_one_is_its_row_alone(tmp_path: Path) -> None:
    page, rows_file = tmp_path / "page.html", tmp_path / "rows.jsonl"
    systems = "fsdp,ciera-off,ted:tp=3"
    done = bench("compare", "--systems", systems, *SMALL, "--html", str(page), "--json", str(rows_file), cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    rows = json_lines(rows_file.read_text())
    assert all(name in row["params"] for row in rows for name in NAMED)
    by_system = {label: [row for row in rows if row["params"]["system"] == label] for label in systems.split(",")}
    # Two turns have no interval.
    unmeasured = {row["metric"] for row in by_system["ciera-off"] if row["status"] != "ok"}
    assert unmeasured <= {"speedup_bound"}
    assert {row["metric"] for row in by_system["ciera-off"]} >= METRICS
    difference = next(row for row in by_system["ciera-off"] if row["metric"] == "loss_difference")
    assert difference["value"] == 0.0
    assert {row["status"] for row in by_system["ted:tp=3"]} == {"skipped"}
    assert "tp=3 does not divide 2 ranks" in by_system["ted:tp=3"][0]["reason"]
    assert "ciera-off" in page.read_text()
    assert "tokens/s" in done.stdout


@pytest.mark.slow
def test_a_system_of_another_package_is_one_as_any_other(tmp_path: Path) -> None:
    """The one that the document shows, built and installed as the document says."""
    fences = re.findall(r"^```(python|toml)\n(.*?)^```$", (ROOT / "docs/compare.md").read_text(), re.M | re.S)
    code, project = dict(fences)["python"], dict(fences)["toml"]
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    (source / "copies.py").write_text(code)
    (source / "pyproject.toml").write_text(project)
    install = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run([*install, "--target", str(installed), str(source)], check=True, timeout=60)
    done = bench(
        "compare",
        "--systems",
        "copies,copies:average=nothing",
        "--check-against",
        "plain",
        *SMALL,
        "--json",
        "-",
        cwd=tmp_path,
        PYTHONPATH=f"{ROOT}:{installed}",
    )
    assert done.returncode == 4, done.stderr
    rows = json_lines(done.stdout)
    right = [row for row in rows if row["params"]["system"] == "copies"]
    assert {row["status"] for row in right} == {"ok"}, [row["reason"] for row in right if row["reason"]]
    sent = next(row for row in right if row["params"].get("collective") == "all_reduce")
    assert sent["value"] > 0
    # Ranks that train for themselves learn something else, and are found out.
    wrong = [row for row in rows if row["params"]["system"] != "copies"]
    assert {row["status"] for row in wrong if "difference" not in row["metric"]} == {"invalid"}
    assert "routes part from those with plain in iteration 2" in wrong[0]["reason"]
