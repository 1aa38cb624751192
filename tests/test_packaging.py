"""The wheel that a clean checkout builds holds everything, what is installed from it works, and versions are pinned."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bench

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bench", "ciera_piper_core", "suites")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUITES: dict[str, str] = PROJECT["entry-points"]["bench.suites"]


@dataclass(frozen=True)
class Installation:
    """A clean checkout, the wheel built from it, and the folder that the wheel was installed into."""

    checkout: Path
    wheel: Path
    folder: Path

    def run(self, *arguments: str) -> str:
        """Output of ``python`` with the arguments; it imports what was installed, not this checkout."""
        env = os.environ | {"PYTHONPATH": str(self.folder)}
        return run([sys.executable, *arguments], cwd=self.folder.parent, env=env)


def run(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=env, stdin=subprocess.DEVNULL, timeout=120
    )
    assert done.returncode == 0, f"{command} exited {done.returncode}: {done.stderr or done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    work = tmp_path_factory.mktemp("packaging")
    checkout = work / "checkout"
    checkout.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, checkout)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    # Nothing is downloaded: the build's only requirement is in the test extra, the others are installed here.
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(work), str(checkout)], work)
    (wheel,) = work.glob("*.whl")
    folder = work / "installed"
    run([*pip, "install", "--no-index", "--no-deps", "--target", str(folder), str(wheel)], work)
    return Installation(checkout, wheel, folder)


def test_wheel_holds_every_file_of_the_packages_and_nothing_else(installation: Installation) -> None:
    names = set(zipfile.ZipFile(installation.wheel).namelist())
    written = {
        str(path.relative_to(installation.checkout))
        for package in PACKAGES
        for path in (installation.checkout / package).rglob("*")
        if path.is_file()
    }
    assert written - names == set(), "not in the wheel: add the file type to package-data in pyproject.toml"
    metadata = f"{PROJECT['name'].replace('-', '_')}-{bench.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, metadata}
    assert f"{metadata}/licenses/LICENSE" in names


def test_every_suite_loads_from_the_wheel(installation: Installation) -> None:
    code = (
        "import sys\n"
        "from bench.registry import load_suite, suite_names\n"
        "for name in suite_names():\n"
        "    suite = load_suite(name)\n"
        "    print(name, suite.name, sys.modules[type(suite).__module__].__file__)\n"
    )
    found = [line.split(" ", 2) for line in installation.run("-c", code).splitlines()]
    assert {entry: name for entry, name, _ in found} == {name: name for name in SUITES}
    assert all(Path(file).is_relative_to(installation.folder) for *_, file in found)


def test_installed_command_lists_the_suites(installation: Installation) -> None:
    output = installation.run(str(installation.folder / "bin" / "bench"), "list")
    assert [name for name in SUITES if name not in output] == []


def constraints() -> dict[str, str]:
    """Pinned version by lower-case name."""
    lines = (ROOT / "ci" / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins), "every line of ci/constraints.txt is name==version"
    return {name.lower(): version for name, version in pins}


def test_constraints_pin_every_direct_dependency() -> None:
    direct = [
        *PROJECT["dependencies"],
        *(item for extra in PROJECT["optional-dependencies"].values() for item in extra),
    ]
    requirements = [Requirement(text) for text in direct]
    pins = constraints()
    assert [r.name for r in requirements if r.name.lower() not in pins] == []
    assert [str(r) for r in requirements if not r.specifier.contains(pins[r.name.lower()])] == []
