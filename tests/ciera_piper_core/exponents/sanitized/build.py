"""Builds a driver together with the C sources that the package builds, under AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
NATIVE = ROOT / "ciera_piper_core" / "exponents" / "native"
FLAGS = (
    "-std=c11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
"""-O1 keeps the accesses of the source apart, so that each is checked; vector intrinsics stay what they are."""

ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
NO_LEAKS = {**ENVIRONMENT, "ASAN_OPTIONS": "detect_leaks=0"}
NO_LEAK_SEARCH = "LeakSanitizer has encountered a fatal error"
"""Leaks are looked for by attaching to the process, which some containers forbid."""


def sources() -> list[Path]:
    """The C files of this package, as pyproject.toml lists them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    return [ROOT / source for source in module["sources"]]


def built(driver: str, folder: Path, *, alone: bool = False) -> Path:
    """The program of a driver and, unless it stands alone, of the package's sources.

    Skips the test where there is no compiler for it.
    """
    compiler = os.environ.get("CC", "gcc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C compiler: {compiler[0]} is not installed (Debian: apt install gcc libc6-dev)")
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    tried = [*compiler, *FLAGS, str(empty), "-o", str(folder / "empty")]
    if subprocess.run(tried, capture_output=True, timeout=60).returncode:
        pytest.skip(f"{compiler[0]} has no AddressSanitizer (Debian: apt install gcc libasan8 libubsan1)")
    program = folder / driver
    files = [HERE / f"{driver}.c", *([] if alone else sources())]
    command = [*compiler, *FLAGS, f"-I{NATIVE}", f"-I{HERE}", *map(str, files), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, *arguments: str, timeout_s: float = 150) -> str:
    """What the program printed; fails with the sanitizer's report if there is one."""
    for environment in (ENVIRONMENT, NO_LEAKS):
        done = subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **environment},
        )
        if NO_LEAK_SEARCH not in done.stderr:
            break
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[:6000]}"
    return done.stdout
