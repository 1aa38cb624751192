"""``bench gate`` as users meet it: sides, options that contradict, outputs, exit codes, two at once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from bench.errors import UsageError
from bench.gate_command import gate, parse_budget
from bench.policy import read_policy
from bench.store.reader import Store
from tests.bench.gate_rows import HOSTILE, THERE, row, samples_of, store_run
from tests.bench.planted import git, plant, put_bench, slow_down
from tests.program import environment

if TYPE_CHECKING:
    from click.testing import Result


def call(*arguments: str, store: Path | None = None) -> Result:
    """Run the verb; its errors are raised."""
    app = typer.Typer()
    app.command()(gate)
    result = CliRunner().invoke(app, [*arguments, *(["--store", str(store)] if store else [])])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No policy lies here."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def two_runs(store: Path, candidate: float, **changes: Any) -> tuple[str, str]:
    """A baseline of 100 and a candidate, stored."""
    baseline = store_run(store, [row(samples_of(100.0))])
    return baseline, store_run(store, [row(samples_of(candidate, seed=1), **changes.pop("row", {}))], **changes)


@pytest.mark.parametrize(
    ("candidate", "changes", "code", "verdict"),
    [
        (100.0, {}, 0, "passed"),
        (120.0, {}, 1, "regressed"),
        (80.0, {}, 0, "passed"),
        (120.0, {"identity": THERE}, 4, "not measured"),
        (120.0, {"row": {"method_version": 2}}, 4, "not measured"),
        (100.0, {"row": {"better": ""}}, 0, "passed"),
        (120.0, {"row": {"better": ""}}, 1, "regressed"),
    ],
)
def test_exit_codes(store: Path, candidate: float, changes: dict[str, Any], code: int, verdict: str) -> None:
    baseline, _ = two_runs(store, candidate, **changes)
    done = call("--baseline", baseline, "--json", "-", store=store)
    found = json.loads(done.stdout)
    assert (done.exit_code, found["exit_code"], found["verdict"]) == (code, code, verdict)
    assert verdict in done.stderr, "the table goes where it does not disturb"


def test_inconclusive_is_3(store: Path) -> None:
    baseline = store_run(store, [row([100.0])])
    store_run(store, [row([120.0])])
    assert call("--baseline", baseline, store=store).exit_code == 3


def test_every_output_at_once(store: Path, tmp_path: Path) -> None:
    baseline, candidate = two_runs(store, 120.0)
    out = tmp_path / "out"
    out.mkdir()
    names = {"json": "gate.json", "markdown": "gate.md", "junit": "gate.xml", "html": "gate.html"}
    options = [word for option, name in names.items() for word in (f"--{option}", str(out / name))]
    done = call("--baseline", baseline, "--candidate", candidate[:-2], *options, store=store)
    assert done.exit_code == 1
    assert "regressed: 1 compared, 1 regressed" in done.stdout
    assert json.loads((out / "gate.json").read_text())["candidate"]["runs"] == [candidate]
    assert ElementTree.parse(out / "gate.xml").getroot().get("failures") == "1"
    assert "Performance: regressed" in (out / "gate.md").read_text()
    assert "Regressed: 1 metric compared" in (out / "gate.html").read_text()
    call("--baseline", baseline, "--candidate", candidate, *options, store=store)
    assert (out / "gate.md").read_text().count("Performance: regressed") == 2, "a job's summary is added to"
    assert len((out / "gate.json").read_text().splitlines()) == 1
    assert sorted(path.name for path in out.iterdir()) == sorted(names.values())


def test_files_of_rows_and_store_folders(store: Path, tmp_path: Path) -> None:
    baseline, candidate = two_runs(store, 120.0)
    for name, run in (("a", baseline), ("b", candidate)):
        rows = Store(store).rows(run_ids=[run])
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{found.to_json()}\n" for found in rows))
    files = ("--baseline", str(tmp_path / "a.jsonl"), "--candidate", str(tmp_path / "b.jsonl"))
    assert call(*files, store=store).exit_code == 1
    unknown = call(*files, store=tmp_path / "elsewhere")
    assert (unknown.exit_code, "new: unknown_machine" in unknown.stdout) == (4, True)
    assert call(*files, "--across-machines", store=tmp_path / "elsewhere").exit_code == 1
    assert call("--baseline", baseline, "--candidate", str(store), store=store).exit_code == 1


def test_the_policy_here_is_used_and_another_can_be_named(store: Path, tmp_path: Path) -> None:
    baseline, _ = two_runs(store, 120.0)
    loose = "schema_version = 1\n[defaults]\nminimum_effect = 0.5\n"
    Path("ci").mkdir()
    Path("ci/policy.toml").write_text(loose)
    assert call("--baseline", baseline, store=store).exit_code == 0
    strict = tmp_path / "strict.toml"
    strict.write_text("schema_version = 1\n")
    assert call("--baseline", baseline, "--policy", str(strict), store=store).exit_code == 1
    strict.write_text("schema_version = 1\nminimum_efect = 1\n")
    with pytest.raises(UsageError, match="unknown key 'minimum_efect'"):
        call("--baseline", baseline, "--policy", str(strict), store=store)


def test_the_dumped_policy_is_the_one_in_force(tmp_path: Path) -> None:
    dumped = tmp_path / "dumped.toml"
    dumped.write_text(call("--dump-policy").stdout)
    assert read_policy(dumped).to_toml() == dumped.read_text()


def test_only_some_suites(store: Path) -> None:
    baseline = store_run(store, [row(samples_of(100)), row(samples_of(100), suite="memory")])
    store_run(store, [row(samples_of(100, seed=1)), row(samples_of(120, seed=1), suite="memory")])
    assert call("--baseline", baseline, store=store).exit_code == 1
    assert call("collectives", "--baseline", baseline, store=store).exit_code == 0
    with pytest.raises(UsageError, match=r"unknown suite 'memroy'; did you mean memory\?"):
        call("memroy", "--baseline", baseline, store=store)


def test_an_expired_waiver_is_an_error_line(store: Path, tmp_path: Path) -> None:
    baseline, _ = two_runs(store, 120.0)
    policy = tmp_path / "policy.toml"
    policy.write_text('schema_version = 1\n[[waiver]]\nsuite = "coll*"\nexpires = 2020-01-01\nreason = "old"\n')
    done = call("--baseline", baseline, "--policy", str(policy), store=store)
    assert done.exit_code == 1
    assert "expired on 2020-01-01 and waives nothing: old" in " ".join(done.stdout.split())


def test_hostile_names_reach_no_terminal(store: Path) -> None:
    hostile = {"suite": HOSTILE.replace("\udc80", ""), "params": {"x": HOSTILE.replace("\udc80", "")}}
    baseline = store_run(store, [row(samples_of(100.0), **hostile)])
    store_run(store, [row(samples_of(120.0, seed=1), **hostile)])
    done = call("--baseline", baseline, store=store)
    assert done.exit_code == 1
    assert not {"\x1b", "\u202e"} & set(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--baseline is missing"),
        (("--baseline", "x", "--interleave"), "name the suites"),
        (("--baseline", "x", "--interleave", "memory", "--across-machines"), "leave --across-machines out"),
        (("--baseline", "x", "--build", "make"), "--build is for the runs of --interleave"),
        (("--baseline", "x", "--max-time", "1"), "--max-time is for the runs of --interleave"),
        (("--baseline", "x", "--budget", "soon"), "--budget needs a time"),
        (("--baseline", "x", "--json", "-", "--html", "-"), "--json and --html cannot share standard output"),
        (("--baseline", "x", "--candidate", ""), "--candidate is empty"),
        (("--baseline", "x", "--candidate", " "), "--candidate is empty"),
        (("--baseline", " "), "--baseline is missing"),
        (("--baseline", "nowhere"), "neither a file, nor a run"),
        (("--baseline", "latest"), "is on both sides"),
    ],
)
def test_wrong_words(store: Path, arguments: tuple[str, ...], message: str) -> None:
    two_runs(store, 100.0)
    with pytest.raises(UsageError) as caught:
        call(*arguments, store=store)
    assert message in str(caught.value)


def test_an_output_that_cannot_be_written_is_named(store: Path) -> None:
    baseline, _ = two_runs(store, 100.0)
    with pytest.raises(UsageError, match="cannot write --html /proc/nowhere/x: there is no folder /proc/nowhere"):
        call("--baseline", baseline, "--html", "/proc/nowhere/x", store=store)


@pytest.mark.parametrize(("candidate", "code"), [(120.0, 1), (100.0, 4)])
def test_an_output_that_fails_late_costs_only_a_0(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidate: float, code: int
) -> None:
    baseline, _ = two_runs(store, candidate)
    monkeypatch.setattr("bench.gate_output.files.refuse_unwritable", lambda outputs: None)
    page = tmp_path / "a.html"
    done = call("--baseline", baseline, "--junit", str(tmp_path), "--html", str(page), store=store)
    assert done.exit_code == code
    assert "1 compared" in done.stdout
    assert f"bench: cannot write --junit to {tmp_path}" in done.stderr
    assert page.exists()


def test_ctrl_c_while_building_leaves_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = plant(tmp_path / "repository")
    monkeypatch.chdir(repository)

    def interrupted(*_: Any) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.worktrees.build", interrupted)
    target = tmp_path / "gate.json"
    store = tmp_path / "store"
    done = call("planted", "--interleave", "--baseline", "main", "--json", str(target), store=store)
    assert done.exit_code == 4
    assert "interrupted before anything was measured" in done.stderr
    found = json.loads(target.read_text())
    assert (found["interrupted"], found["exit_code"], found["compared"]) == (True, 4, 0)
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(("text", "seconds"), [("600", 600), ("90s", 90), ("1.5m", 90), ("1h", 3600)])
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "0", "nan", "inf", "1e99", "10 m m", "1d"])
def test_impossible_budgets(text: str) -> None:
    with pytest.raises(UsageError, match="--budget needs a time"):
        parse_budget(text)


def test_two_gates_at_once_both_judge(store: Path, tmp_path: Path) -> None:
    baseline, _ = two_runs(store, 120.0)
    program = put_bench(tmp_path / "bin") / "bench"
    command = [str(program), "gate", "--baseline", baseline, "--store", str(store), "--json"]
    targets = [tmp_path / "same.json", tmp_path / "same.json", tmp_path / "other.json"]
    started = [
        subprocess.Popen([*command, str(target)], env=environment(), stdout=subprocess.DEVNULL) for target in targets
    ]
    assert [process.wait(60) for process in started] == [1, 1, 1]
    assert all(json.loads(target.read_text())["exit_code"] == 1 for target in targets)


@pytest.mark.slow
@pytest.mark.alone
def test_two_commits_are_built_and_measured_by_turns(tmp_path: Path) -> None:
    repository = plant(tmp_path / "repository")
    slow_down(repository, 1.5)
    program = put_bench(tmp_path / "bin") / "bench"
    command = [str(program), "gate", "planted", "--interleave", "--baseline", "main", "--max-time", "0.05"]
    command += ["--budget", "100s", "--json", "-"]
    done = subprocess.run(
        command, cwd=repository, env=environment(), capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    verdicts = {one["params"]["kind"]: (one["verdict"], one["confirmed"]) for one in found["comparisons"]}
    assert verdicts["hit"] == ("regressed", True)
    assert verdicts["not*hit"][0] != "regressed"
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    dirty = [run.record.fingerprint["volatile"]["git"]["dirty"] for run in Store(repository / "results/store").runs()]
    assert dirty.count(True) == dirty.count(False), "the working tree is told from the commit"
