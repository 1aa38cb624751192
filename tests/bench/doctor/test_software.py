"""Checks of software, with packages and programs really missing."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.doctor import software
from bench.doctor.torch_probe import TorchProbe

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKING = TorchProbe(version="2.13.0+cpu", built_for="CPU", has_gloo=True)


def test_this_python_is_new_enough() -> None:
    assert software.check_python().status == "ok"
    least = ".".join(map(str, software.LEAST_PYTHON))
    assert PROJECT["requires-python"] == f">={least}"


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.13.0+cpu", "ok"), ("2.13.1", "ok"), ("2.14.0a0+git12", "warn"), ("3.0.0", "warn"), ("2.9.1+cu128", "missing")],
)
def test_torch_versions(version: str, status: str) -> None:
    check = software.check_torch(TorchProbe(version=version, built_for="CPU"))
    assert (check.status, bool(check.fix)) == (status, status != "ok")
    assert version in check.found


def test_the_torch_that_is_called_tested_is_the_one_that_is_pinned() -> None:
    tested = ".".join(map(str, software.TESTED_TORCH))
    assert f"torch>={tested}" in PROJECT["dependencies"]
    assert f"torch=={tested}.0" in (ROOT / "ci/constraints.txt").read_text()


def test_gloo() -> None:
    assert software.check_gloo(WORKING).status == "ok"
    broken = software.check_gloo(TorchProbe(version="2.13.0", has_gloo=True, gloo_error="no such interface"))
    assert (broken.status, broken.required) == ("missing", True)
    assert "no such interface" in broken.found
    assert software.check_gloo(TorchProbe(version="2.13.0")).found == "torch has no gloo"
    assert software.check_gloo(TorchProbe(error="gone")).found == "no torch"


def test_nccl_matters_only_where_gpus_are(hgx: Path) -> None:
    assert software.check_nccl(WORKING, hgx.parent / "nothing").status == "n/a"
    absent = software.check_nccl(WORKING, hgx)
    assert (absent.status, absent.fix.rpartition("/")[2]) == ("missing", "cu130")
    assert software.check_nccl(TorchProbe(version="2.13.0", has_nccl=True, nccl_version="2.29.7"), hgx).status == "ok"


def test_amd_gpus_need_the_torch_of_rocm(amd_node: Path) -> None:
    assert "whl/rocm" in software.torch_for_gpu_command(amd_node)


def test_a_bare_python_lacks_torch_and_packages(
    bare_python: str, check_elsewhere: Callable[..., dict[str, Any]]
) -> None:
    packages = check_elsewhere("software", "check_required_packages()", python=bare_python)
    assert (packages["status"], packages["required"]) == ("missing", True)
    assert packages["fix"].startswith("pip install")
    probe = "from bench.doctor.torch_probe import probe_torch"
    torch = check_elsewhere("software", "check_torch(probe_torch())", first=probe, python=bare_python)
    assert (torch["status"], torch["required"]) == ("missing", True)
    assert "No module named 'torch'" in torch["found"]


def test_extras_are_those_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(software.EXTRAS) == set(extras)
    assert set(software.PINNED_TO_TORCH) == {
        extra for extra, needs in extras.items() if any(need.startswith(("triton", "deepspeed")) for need in needs)
    }


def test_extras_of_this_python() -> None:
    checks = {check.name: check for check in software.check_extras()}
    assert set(checks) == {f"extra {name}" for name in PROJECT["optional-dependencies"]}
    assert checks["extra test"].status == "ok", checks["extra test"].found
    for name, check in checks.items():
        extra = name.removeprefix("extra ")
        assert check.status in ("ok", "n/a") or check.fix.startswith(f"pip install 'ciera-piper-bench[{extra}]'")


def test_the_compiler_here_builds_a_library() -> None:
    assert software.check_compiler().status == "ok"


@pytest.mark.parametrize(
    ("compiler", "found"),
    [
        ("false", "/false cannot build a library: status 1"),
        ("nosuchcompiler -m64", "no nosuchcompiler; native kernels"),
    ],
)
def test_a_compiler_that_does_not_work(monkeypatch: pytest.MonkeyPatch, compiler: str, found: str) -> None:
    monkeypatch.setenv("CC", compiler)
    check = software.check_compiler()
    assert check.status == "missing"
    assert found in check.found


def test_a_compiler_that_finds_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -nostdinc")
    check = software.check_compiler()
    assert check.status == "missing"
    assert "stdint.h" in check.found


def test_programs_that_are_not_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    compiler, browser = software.check_compiler(), software.check_browser()
    assert (compiler.status, compiler.found.partition(";")[0]) == ("missing", "no cc")
    assert (browser.status, browser.found.partition(";")[0]) == ("missing", "no chromium")
    (tmp_path / "chromium").touch(mode=0o755)
    assert software.check_browser().found.startswith("no chromedriver")
