"""The templates in ci/ work: their steps run here, against a repository with a small package, in tiny presets."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import yaml

from bench.gate_command import gate
from bench.store.reader import Store
from tests.bench.planted import commit, git, plant, put_bench, search_path, slow_down
from tests.program import ROOT, environment

if TYPE_CHECKING:
    from pathlib import Path

CI = ROOT / "ci"
TINY = {"SUITES": "planted", "RUN_OPTIONS": "--max-time=0.02 --select=kind=hit", "BUDGET": "1s"}
"""A budget of a second is for one quartet, which tells nothing: the gate is inconclusive."""

MEASURE = "run planted.suite:PlantedSuite --max-time 0.3 --select kind=hit"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: ``main``, and a slower one on a branch."""
    folder = plant(tmp_path / "repository")
    git(folder, "checkout", "-q", "-b", "change")
    slow_down(folder, 1.5)
    commit(folder)
    return folder


@pytest.fixture
def programs(tmp_path: Path, repository: Path) -> dict[str, str]:
    """An environment with a ``bench`` of this project, and an ``srun`` that starts one task here."""
    folder = put_bench(tmp_path / "bin")
    srun = folder / "srun"
    srun.write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": search_path(repository)}
    return environment(**paths)


def shell(script: str, folder: Path, env: dict[str, str], *, strict: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a step as CI systems do: bash that ends at the first error."""
    command = ["bash", *(["-eo", "pipefail"] if strict else []), "-c", script]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=170, check=False)


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CI / "github" / "gate.yml").read_text())
    return loaded


def gitlab_job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CI / "gitlab" / "gate.yml").read_text())
    return loaded["performance gate"]  # type: ignore[no-any-return]


def outputs(folder: Path) -> dict[str, Any]:
    """The gate's JSON, after a look at its other outputs."""
    assert ElementTree.parse(folder / "junit.xml").getroot().tag == "testsuites"
    assert (folder / "gate.html").read_text().startswith("<!DOCTYPE html>")
    loaded: dict[str, Any] = json.loads((folder / "gate.json").read_text())
    return loaded


@pytest.mark.slow
@pytest.mark.alone
def test_the_steps_of_the_github_workflow_run(repository: Path, programs: dict[str, str], tmp_path: Path) -> None:
    job = workflow()["jobs"]["gate"]
    steps = {step["name"]: step for step in job["steps"] if "run" in step}
    assert set(steps) == {"Install", "Gate"}
    summary = tmp_path / "summary.md"
    env = programs | {name: str(value) for name, value in workflow()["env"].items()} | TINY
    env |= {"BASELINE": git(repository, "rev-parse", "main"), "GITHUB_STEP_SUMMARY": str(summary)}
    assert set(steps["Gate"]["env"]) <= set(env)
    done = shell(steps["Gate"]["run"], repository, env)
    assert done.returncode == 0, done.stderr
    assert "::warning title=performance gate::inconclusive" in done.stdout
    assert "Performance: inconclusive" in summary.read_text()
    found = outputs(repository / "gate")
    assert (found["exit_code"], found["compared"]) == (3, 1)
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_github_step_ends_as_the_gate_does(
    code: int, repository: Path, programs: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bin" / "bench").write_text(f"#!/bin/sh\nexit {code}\n")
    (script,) = (step["run"] for step in workflow()["jobs"]["gate"]["steps"] if step.get("name") == "Gate")
    done = shell(script, repository, programs | TINY | {"BASELINE": "main", "GITHUB_STEP_SUMMARY": "summary"})
    assert done.returncode == (0 if code == 3 else code)


def test_no_github_expression_is_in_a_script() -> None:
    """A branch's name in a script would be run; in the environment it is text."""
    for step in workflow()["jobs"]["gate"]["steps"]:
        assert "${{" not in step.get("run", "")
    assert workflow()["permissions"] == {"contents": "read"}


@pytest.mark.slow
@pytest.mark.alone
def test_the_steps_of_the_gitlab_job_run(repository: Path, programs: dict[str, str]) -> None:
    job = gitlab_job()
    env = programs | {name: str(value) for name, value in job["variables"].items()} | TINY
    env["CI_MERGE_REQUEST_DIFF_BASE_SHA"] = git(repository, "rev-parse", "main")
    done = shell("\n".join(job["script"]), repository, env)
    assert done.returncode in job["allow_failure"]["exit_codes"], done.stderr
    assert outputs(repository / "gate")["compared"] == 1
    assert "Performance: inconclusive" in (repository / "gate" / "gate.md").read_text()
    kept = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert [path for path in kept if not (repository / path).exists()] == []


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("factor", "code"), [(3.0, 1), (1.0, 0)])
def test_the_slurm_script_runs(
    factor: float, code: int, repository: Path, programs: dict[str, str], tmp_path: Path
) -> None:
    script = (CI / "slurm" / "gate.sbatch").read_text()
    tiny = script.replace("run collectives alltoall --preset standard", MEASURE)
    tiny = tiny.replace(".venv/bin/bench", str(tmp_path / "bin" / "bench"))
    assert tiny.count(MEASURE) == 2, "the script has changed; see what it measures"
    git(repository, "checkout", "-q", "main")
    env = programs | {"BASELINE": "main", "SLURM_JOB_ID": "7"}
    assert shell(f"bench {MEASURE}", repository, env).returncode == 0
    slow_down(repository, factor)
    done = shell(tiny, repository, env, strict=False)
    assert done.returncode == code, done.stdout + done.stderr
    found = outputs(repository / "gate-7")
    (comparison,) = found["comparisons"]
    assert (comparison["verdict"], comparison["confirmed"]) == (("regressed", True) if code else ("pass", None))
    assert len(found["candidate"]["runs"]) == 2
    assert len(Store(repository / "results" / "store").runs()) == 3


def test_the_slurm_script_asks_for_a_baseline(repository: Path, programs: dict[str, str]) -> None:
    script = re.sub(r"^srun.*$", "", (CI / "slurm" / "gate.sbatch").read_text(), flags=re.MULTILINE)
    done = shell(script, repository, programs, strict=False)
    assert done.returncode != 0
    assert "name a run, a git ref or a file of rows" in done.stderr


def test_the_install_steps_are_those_of_the_readme() -> None:
    steps = [step["run"] for step in workflow()["jobs"]["gate"]["steps"] if step.get("name") == "Install"]
    assert steps == gitlab_job()["before_script"]
    assert steps[0].startswith("python -m pip install -q -c ci/constraints.txt .")
    assert (CI / "constraints.txt").exists()


def test_the_gate_has_a_docstring_with_an_example() -> None:
    assert "Example: bench gate" in (gate.__doc__ or "")
