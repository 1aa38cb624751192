"""Two commits beside each other: git worktrees that are made, built, and always removed again.

They lie in a folder of the system's temporary folder that says which process owns it, so that the
next gate removes what a killed one left, and never what a living one uses.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError, UsageError
from bench.gate_sources import git_line, resolve_commit
from bench.store.owner import is_alive, this_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PREFIX = "bench-gate-"
OWNER_FILE = "owner.json"
SETUPTOOLS = "from setuptools import setup; setup()"
TAIL_LINES = 15
GIT_TIMEOUT_S = 300.0


class Worktrees:
    """Makes checkouts of one repository and removes them; use it as a context.

    Attributes:
        repository: top folder of the working tree that the user is in.
        folder: where the checkouts lie.
    """

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self.folder = folder
        self._made: list[Path] = []

    def checkout(self, name: str, ref: str) -> Path:
        """A checkout of a ref, in a folder of that name.

        Raises:
            UsageError: no such ref.
        """
        commit = resolve_commit(ref, self.repository)
        if commit is None:
            raise UsageError(f"{ref!r} is no commit of {self.repository}; `git branch` and `git log` show what is")
        path = self.folder / name
        self._made.append(path)
        # Hooks of the repository are for its users' checkouts, not for this one.
        _git(
            self.repository,
            "-c",
            "core.hooksPath=/dev/null",
            "worktree",
            "add",
            "--quiet",
            "--detach",
            str(path),
            commit,
        )
        return path

    def snapshot(self, name: str) -> Path:
        """A checkout of the last commit with the working tree's changes on it, new files among them.

        Files that git ignores stay out. What is changed later in the working tree does not reach it.
        """
        path = self.checkout(name, "HEAD")
        for relative in _git_paths(self.repository, "diff", "--name-only", "--no-renames", "--diff-filter=D", "HEAD"):
            (path / relative).unlink(missing_ok=True)
        changed = _git_paths(self.repository, "diff", "--name-only", "--no-renames", "--diff-filter=d", "HEAD")
        new = _git_paths(self.repository, "ls-files", "--others", "--exclude-standard")
        for relative in [*changed, *new]:
            source, target = self.repository / relative, path / relative
            if source.is_dir() and not source.is_symlink():
                continue  # a submodule, or a repository in the repository: its files are not this one's
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        return path

    def remove(self) -> None:
        """Remove every checkout, whatever state it is in."""
        for path in self._made:
            _remove_worktree(self.repository, path)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def worktrees(start: Path) -> Iterator[Worktrees]:
    """Worktrees of the repository that a folder is in; all are gone when the block ends.

    Raises:
        UsageError: the folder is in no git repository.
    """
    top = git_line(["rev-parse", "--show-toplevel"], start)
    if not top:
        raise UsageError(f"--interleave compares commits, and {start.resolve()} is in no git repository")
    repository = Path(top)
    remove_leftovers(repository)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    (folder / OWNER_FILE).write_text(json.dumps(this_process()))
    made = Worktrees(repository, folder)
    try:
        yield made
    finally:
        made.remove()


def remove_leftovers(repository: Path) -> list[Path]:
    """Remove worktrees of gates that were killed; returns the folders that were removed."""
    listed = git_line(["worktree", "list", "--porcelain"], repository) or ""
    paths = [Path(line.removeprefix("worktree ")) for line in listed.splitlines() if line.startswith("worktree ")]
    removed = []
    for path in paths:
        if path.parent.name.startswith(PREFIX) and _is_left_over(path.parent):
            _remove_worktree(repository, path)
            shutil.rmtree(path.parent, ignore_errors=True)
            removed.append(path)
    return removed


def build(checkout: Path, command: str | None) -> list[str]:
    """Build a checkout: its metadata (entry points) and compiled extensions, in its own folder.

    Args:
        checkout: the folder.
        command: a shell command that builds it; None for setuptools' own where the package uses it,
            else nothing.

    Returns:
        notes, a line each.

    Raises:
        BenchError: the build failed; the message has the end of its output.
    """
    if command is not None:
        argv: Sequence[str] = ["/bin/sh", "-c", command]
        shown = command
    elif _uses_setuptools(checkout):
        if importlib.util.find_spec("setuptools") is None:
            return ["nothing was built: setuptools is not installed here; `pip install setuptools`, or --build COMMAND"]
        script = ["setup.py"] if (checkout / "setup.py").exists() else ["-c", SETUPTOOLS]
        argv = [sys.executable, *script, "-q", "egg_info", "build_ext", "--inplace"]
        shown = "setuptools' egg_info and build_ext --inplace"
    else:
        return ["nothing was built: the package does not use setuptools; --build COMMAND says how to build it"]
    done = subprocess.run(
        argv,
        cwd=checkout,
        env=environment(checkout),
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-TAIL_LINES:])
        raise BenchError(f"building {checkout.name} failed ({shown}, exit code {done.returncode}):\n{tail}")
    return []


def environment(checkout: Path) -> dict[str, str]:
    """This process's environment in which Python imports the checkout's packages before any installed ones."""
    source = checkout / "src"
    paths = [str(source)] if source.is_dir() else []
    inherited = os.environ.get("PYTHONPATH")
    # What the user has on the path may be this very repository's working tree: it must come last.
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, str(checkout), *([inherited] if inherited else [])]),
    }


def _uses_setuptools(checkout: Path) -> bool:
    if (checkout / "setup.py").exists():
        return True
    try:
        return "setuptools" in (checkout / "pyproject.toml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _is_left_over(folder: Path) -> bool:
    """Whether the gate that made a folder is gone; a folder that does not tell is nobody's to remove."""
    if not folder.exists():
        return True
    try:
        owner = json.loads((folder / OWNER_FILE).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(owner, dict) and is_alive(owner) is False


def _remove_worktree(repository: Path, path: Path) -> None:
    """Forget a worktree and its files; git itself may have been interrupted while it made it."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            ["git", "worktree", "remove", "--force", "--force", str(path)],
            cwd=repository,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    shutil.rmtree(path, ignore_errors=True)


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=repository,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError(f"git {' '.join(arguments)} failed: {error}") from None
    if done.returncode != 0:
        raise BenchError(f"git {' '.join(arguments)} failed: {' '.join(done.stderr.split())}")
    return done.stdout


def _git_paths(repository: Path, *arguments: str) -> list[Path]:
    """Paths that git lists, relative to the repository."""
    return [Path(name) for name in _git(repository, *arguments, "-z").split("\0") if name]
