"""Checkouts of two commits: what is in them, that they are built, and that nothing of them stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.errors import BenchError, UsageError
from bench.worktrees import OWNER_FILE, PREFIX, build, environment, remove_leftovers, worktrees
from tests.bench.planted import commit, git, plant, slow_down
from tests.program import ROOT


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return plant(tmp_path / "repository")


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leftovers are looked for here, not in the machine's."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def listed(repository: Path) -> int:
    return len(git(repository, "worktree", "list").splitlines())


def factor(checkout: Path) -> str:
    return (checkout / "planted" / "slowness.py").read_text().strip()


def test_refs_are_checked_out_and_all_is_gone_after(repository: Path, temporary_folder: Path) -> None:
    slow_down(repository, 2.0)
    commit(repository)
    with worktrees(repository / "planted") as trees:
        assert factor(trees.checkout("one", "HEAD~1")) == "FACTOR = 1.0"
        assert factor(trees.checkout("two", "main")) == "FACTOR = 2.0"
        assert listed(repository) == 3
    assert listed(repository) == 1
    assert list(temporary_folder.iterdir()) == []


def test_a_snapshot_is_the_working_tree_as_it_is(repository: Path) -> None:
    slow_down(repository, 3.0)
    (repository / "new file\n.txt").write_text("new")
    (repository / "link").symlink_to("/etc/passwd")
    (repository / "planted" / "ignored.egg-info").mkdir()
    (repository / "planted" / "suite.py").unlink()
    git(repository, "mv", ".gitignore", "moved")
    (repository / "planted" / "__init__.py").chmod(0o755)
    before = git(repository, "status", "--short")
    with worktrees(repository) as trees:
        path = trees.snapshot("candidate")
        assert factor(path) == "FACTOR = 3.0"
        assert (path / "new file\n.txt").read_text() == "new"
        assert (path / "link").is_symlink()
        assert (path / "moved").exists()
        gone = ("planted/suite.py", ".gitignore", "planted/ignored.egg-info")
        assert [name for name in gone if (path / name).exists()] == []
        assert os.access(path / "planted" / "__init__.py", os.X_OK)
        slow_down(repository, 4.0)
        assert factor(path) == "FACTOR = 3.0", "later changes do not reach it"
    slow_down(repository, 3.0)
    assert git(repository, "status", "--short") == before


def test_nothing_stays_when_it_ends_badly(repository: Path, temporary_folder: Path) -> None:
    with pytest.raises(BenchError, match="exit code 1"), worktrees(repository) as trees:
        build(trees.checkout("one", "main"), "false")
    with pytest.raises(UsageError, match="'nowhere' is no commit of"), worktrees(repository) as trees:
        trees.checkout("one", "nowhere")
    assert listed(repository) == 1
    assert list(temporary_folder.iterdir()) == []


def test_hooks_of_the_repository_do_not_run(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    with worktrees(repository) as trees:
        assert not (trees.checkout("one", "main") / "hooked").exists()


def test_outside_of_a_repository_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is in no git repository"), worktrees(tmp_path):
        pass


def test_leftovers_of_a_killed_gate_go_and_a_living_ones_stay(repository: Path, temporary_folder: Path) -> None:
    script = (
        "import sys, time, tempfile, pathlib; tempfile.tempdir = sys.argv[2]\n"
        "from bench.worktrees import worktrees\n"
        "with worktrees(pathlib.Path(sys.argv[1])) as trees:\n"
        "    trees.checkout('one', 'main'); print('ready', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(repository), str(temporary_folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert remove_leftovers(repository) == []
        assert listed(repository) == 2
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert len(remove_leftovers(repository)) == 1
    assert listed(repository) == 1
    assert list(temporary_folder.iterdir()) == []


def test_a_worktree_of_the_users_own_stays(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "mine"))
    folder = tmp_path / f"{PREFIX}unowned"
    folder.mkdir()
    git(repository, "worktree", "add", "-q", "--detach", str(folder / "x"))
    (folder / OWNER_FILE).write_text(json.dumps({"host": "another", "pid": 1}))
    assert remove_leftovers(repository) == []
    assert listed(repository) == 3


def test_building_makes_the_checkouts_own_metadata(repository: Path) -> None:
    with worktrees(repository) as trees:
        path = trees.checkout("one", "main")
        assert build(path, None) == []
        code = "from bench.registry import load_suite; print(load_suite('planted').summary)"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(path), cwd=path, capture_output=True, text=True
        )
        assert done.stdout == "sleeps\n", done.stderr


def test_a_compiled_extension_is_built(repository: Path) -> None:
    (repository / "planted" / "fast.c").write_text("int planted_answer(void) { return 42; }\n")
    extension = "Extension('planted.fast', ['planted/fast.c'], optional=False)"
    (repository / "setup.py").write_text(f"from setuptools import Extension, setup\nsetup(ext_modules=[{extension}])\n")
    with worktrees(repository) as trees:
        path = trees.snapshot("one")
        build(path, None)
        assert list((path / "planted").glob("fast*.so"))


def test_the_build_command_of_the_user_runs_in_the_checkout(repository: Path) -> None:
    with worktrees(repository) as trees:
        path = trees.checkout("one", "main")
        assert build(path, "pwd > built") == []
        assert Path((path / "built").read_text().strip()) == path.resolve()
        with pytest.raises(BenchError, match=r"building one failed \(echo broken; exit 3, exit code 3\):\nbroken"):
            build(path, "echo broken; exit 3")


def test_a_package_of_another_build_tool_is_said(repository: Path) -> None:
    (repository / "pyproject.toml").write_text('[build-system]\nrequires = ["hatchling"]\n')
    with worktrees(repository) as trees:
        (note,) = build(trees.snapshot("one"), None)
    assert "--build COMMAND" in note


def test_the_checkout_comes_before_all_else_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/the/working/tree")
    (tmp_path / "src").mkdir()
    assert environment(tmp_path)["PYTHONPATH"] == f"{tmp_path}/src:{tmp_path}:/the/working/tree"


def test_checking_out_takes_no_time_worth_speaking_of(repository: Path) -> None:
    began = time.monotonic()
    with worktrees(repository) as trees:
        trees.checkout("one", "main")
    assert time.monotonic() - began < 10
