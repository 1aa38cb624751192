"""Checks of the software that this Python can use: torch and its backends, packages, extras, a compiler."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.doctor.check import Check, install_command
from bench.hardware.gpu import pci_gpu_vendors
from bench.hardware.kernelfs import ROOT

if TYPE_CHECKING:
    from bench.doctor.torch_probe import TorchProbe

DISTRIBUTION = "ciera-piper-bench"
LEAST_PYTHON = (3, 11)
TESTED_TORCH = (2, 13)
INSTALL_TORCH = "pip install 'torch>=2.13' -c ci/constraints.txt"

EXTRAS = {
    "gpu": "Triton kernels and GPU codecs",
    "deepspeed": "ZeRO-3, ZeRO++ and DeepSpeed-MoE to compare with",
    "compare": "other compressors beside ours in codec rows",
    "test": "the tests",
    "lint": "the checks that contributions must pass",
}
"""What each extra of this project adds."""

PINNED_TO_TORCH = ("gpu", "deepspeed", "test")
"""Extras whose packages must fit the torch that is installed."""

COMPILE_TIMEOUT_S = 60.0
_KERNEL = "#include <stdint.h>\n#include <string.h>\nint64_t add(int64_t a, int64_t b) { return a + b; }\n"


def check_python() -> Check:
    """The version of Python."""
    least = ".".join(map(str, LEAST_PYTHON))
    new_enough = sys.version_info >= LEAST_PYTHON
    return Check(
        "python",
        "ok" if new_enough else "missing",
        f"{platform.python_version()} ({sys.executable})" + ("" if new_enough else f"; {least} or newer is needed"),
        "" if new_enough else install_command("python3.11"),
        required=True,
    )


def check_torch(torch: TorchProbe) -> Check:
    """Whether torch can be imported, and is one that this harness was tested with."""
    if torch.error:
        return Check("torch", "missing", f"cannot be imported: {torch.error}", INSTALL_TORCH, required=True)
    found = f"{torch.version}, built for {torch.built_for}"
    release = tuple(int(part) for part in re.findall(r"\d+", torch.version)[:2])
    tested = ".".join(map(str, TESTED_TORCH))
    if release < TESTED_TORCH:
        return Check("torch", "missing", f"{found}; {tested} or newer is needed", INSTALL_TORCH, required=True)
    if release > TESTED_TORCH:
        return Check("torch", "warn", f"{found}; tested with {tested}", INSTALL_TORCH, required=True)
    return Check("torch", "ok", found, required=True)


def check_gloo(torch: TorchProbe) -> Check:
    """The backend of CPU ranks and of every control plane: a group of one is formed and reduces a number."""
    if torch.error or not torch.has_gloo:
        return Check(
            "gloo", "missing", "torch has no gloo" if torch.version else "no torch", INSTALL_TORCH, required=True
        )
    if torch.gloo_error:
        fix = "let the host name resolve (/etc/hosts), or name an interface: export GLOO_SOCKET_IFNAME=lo"
        return Check("gloo", "missing", f"a group of one fails: {torch.gloo_error}", fix, required=True)
    return Check("gloo", "ok", "a group of one works", required=True)


def check_nccl(torch: TorchProbe, root: Path = ROOT) -> Check:
    """The backend of GPU ranks."""
    if not pci_gpu_vendors(root):
        return Check("nccl", "n/a", "no GPU here; ranks talk over gloo")
    if torch.has_nccl:
        return Check("nccl", "ok", torch.nccl_version or "in this torch")
    return Check("nccl", "missing", "this torch has no NCCL or RCCL", torch_for_gpu_command(root))


def torch_for_gpu_command(root: Path = ROOT) -> str:
    """The command that installs the build of torch that fits the GPUs of this machine."""
    index = "rocm7.2" if set(pci_gpu_vendors(root)) == {"amd"} else "cu130"
    return f"pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/{index}"


def check_required_packages() -> Check:
    """Packages without which the harness does not work."""
    requirements = _requirements()
    if requirements is None:
        found = "the harness runs from its source folder, so suites and verbs are not registered"
        return Check("packages", "missing", found, "pip install -e . -c ci/constraints.txt", required=True)
    absent = [name for name, extra in requirements if extra is None and not _is_installed(name)]
    if absent:
        fix = f"pip install {' '.join(absent)} -c ci/constraints.txt"
        return Check("packages", "missing", f"not installed: {', '.join(absent)}", fix, required=True)
    return Check("packages", "ok", "all that are required", required=True)


def check_extras() -> list[Check]:
    """Each extra that the installed harness offers, with what it adds."""
    requirements = _requirements() or []
    extras = dict.fromkeys(extra for _, extra in requirements if extra is not None)
    return [_check_extra(extra, [name for name, of in requirements if of == extra]) for extra in extras]


def check_compiler() -> Check:
    """A C compiler that can build a shared library: the native kernels are built with it."""
    wanted = shlex.split(os.environ.get("CC", ""))
    names = wanted[:1] or ["cc", "gcc", "clang"]
    program = next((found for found in map(shutil.which, names) if found), None)
    fix = install_command("gcc", "libc6-dev")
    if program is None:
        found = f"no {names[0]}; native kernels cannot be built, the slower reference ones serve"
        return Check("C compiler", "missing", found, fix)
    error = _compile([program, *wanted[1:]])
    if error:
        return Check("C compiler", "missing", f"{program} cannot build a library: {error}", fix)
    return Check("C compiler", "ok", f"{program} builds a C11 library")


def _compile(compiler: list[str]) -> str:
    """Build a small shared library; the first line of the error, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.c")
        source.write_text(_KERNEL)
        options = ["-std=c11", "-O1", "-shared", "-fPIC", str(source), "-o", str(Path(folder, "kernel.so"))]
        try:
            done = subprocess.run(
                [*compiler, *options], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"status {done.returncode}").partition("\n")[0]


def check_browser() -> Check:
    """A browser that tests can drive to look at reports."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for found in map(shutil.which, names) if found), None)
    driver = shutil.which("chromedriver")
    if browser and driver:
        return Check("browser", "ok", f"{browser}, {driver}; tests of reports use it")
    absent = "chromedriver" if browser else "chromium"
    fix = install_command("chromium", "chromium-driver")
    return Check("browser", "missing", f"no {absent}; only tests of reports need it", fix)


def _check_extra(extra: str, names: list[str]) -> Check:
    adds = EXTRAS.get(extra, "")
    absent = [name for name in names if not _is_installed(name)]
    title = f"extra {extra}"
    if not absent:
        return Check(title, "ok", adds)
    if extra == "gpu" and not pci_gpu_vendors():
        return Check(title, "n/a", f"{adds}: no GPU here")
    constraints = " -c ci/constraints.txt" if extra in PINNED_TO_TORCH else ""
    fix = f"pip install '{DISTRIBUTION}[{extra}]'{constraints}"
    return Check(title, "missing", f"{adds}; not installed: {', '.join(absent)}", fix)


def _requirements() -> list[tuple[str, str | None]] | None:
    """Required distributions with the extra that wants each, or None; None if the harness is not installed."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    requirements: list[tuple[str, str | None]] = []
    for line in lines:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        extra = re.search(r"\bextra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if name:
            requirements.append((name.group(), extra.group(1) if extra else None))
    return requirements


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
