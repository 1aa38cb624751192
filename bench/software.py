"""Versions of the software that a measurement stands on, found without importing any of it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

GIT_TIMEOUT_S = 2.0
_SYSTEM_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")


class TorchBuild(TypedDict):
    """Versions of torch and of what it was built for; all None if it is not installed."""

    torch: str | None
    cuda: str | None
    hip: str | None


class GitState(TypedDict):
    """The commit of a working tree, and whether tracked files differ from it."""

    commit: str
    dirty: bool


def torch_build() -> TorchBuild:
    """What ``torch/version.py`` says. Importing torch for it would take seconds."""
    versions: dict[str, str | None] = {}
    try:
        spec = importlib.util.find_spec("torch")
        source = Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
        tree = ast.parse(source)
    except (ImportError, OSError, ValueError, SyntaxError):
        tree = ast.parse("")
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            versions |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    return {"torch": versions.get("__version__"), "cuda": versions.get("cuda"), "hip": versions.get("hip")}


def nccl_version() -> str | None:
    """The NCCL (or RCCL) that torch will load: of its own wheel, else by the library's file name; None without one."""
    build = torch_build()
    if build["cuda"]:
        return _nccl_wheel_version() or _library_version("libnccl.so.2")
    if build["hip"]:
        return _library_version("librccl.so.1")
    return None


def git_state() -> GitState | None:
    """The state of the working tree that the current folder is in, or None."""
    # A repository can name a program to run on each status; none is run for a fingerprint.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "status"]
    command += ["--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    commit = re.search(r"^# branch.oid ([0-9a-f]{40,64})$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not commit:
        return None
    return {"commit": commit.group(1), "dirty": any(not line.startswith("#") for line in done.stdout.splitlines())}


def _nccl_wheel_version() -> str | None:
    try:
        requirements = importlib.metadata.requires("torch") or []
        names = [match.group() for match in map(re.compile(r"nvidia-nccl-cu\d+").match, requirements) if match]
        return importlib.metadata.version(names[0]) if names else None
    except importlib.metadata.PackageNotFoundError:
        return None


def _library_version(soname: str) -> str | None:
    """The version in a library's full file name, ``libnccl.so.2.27.3``, in the linker's order of folders.

    It is not loaded: that would decide which copy torch gets in this process.
    """
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), f"{sys.prefix}/lib", *_SYSTEM_LIBRARIES]
    folders += ["/usr/local/cuda/lib64", "/opt/rocm/lib"]
    for folder in filter(None, folders):
        name = os.path.basename(os.path.realpath(os.path.join(folder, soname)))
        if name.startswith(f"{soname}."):
            return name.removeprefix(f"{soname.rpartition('.')[0]}.")
    return None
