"""What the doctor is told of the native kernels: built or not, at which level, and without importing torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ciera_piper_core.exponents import health
from ciera_piper_core.exponents.native import functions, library

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def _built() -> None:
    try:
        library.load()
    except library.NativeUnavailableError as error:
        pytest.skip(str(error))


def test_kernels_that_were_not_built_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def functions() -> None:
        raise library.NativeUnavailableError("the native kernels were not built; install a C compiler")

    monkeypatch.setattr(health, "planes_functions", functions)
    (check,) = health.checks()
    assert check["status"] == "missing"
    assert check["found"] == f"the native kernels were not built; {health.SERVES}"
    assert "pip install" in check["fix"]


@pytest.mark.usefixtures("_built")
def test_the_levels_of_this_processor_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.ISA_VARIABLE, raising=False)
    (check,) = health.checks()
    assert (check["name"], check["status"]) == ("native kernels", "ok")
    assert all(level in check["found"] for level in library.available_isas())
    assert "fix" not in check


@pytest.mark.usefixtures("_built")
def test_a_variable_that_slows_them_down_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.ISA_VARIABLE, "scalar")
    (check,) = health.checks()
    if library.best_isa() == "scalar":
        assert check["status"] == "ok"
        return
    assert check["status"] == "warn"
    assert check["found"].startswith("CIERA_ISA=scalar holds them to scalar; this processor has ")
    assert check["fix"] == "unset CIERA_ISA"


@pytest.mark.usefixtures("_built")
def test_a_level_that_there_is_not_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.ISA_VARIABLE, "avx1024")
    (check,) = health.checks()
    assert check["status"] == "warn"
    assert "unknown instruction level 'avx1024'" in check["found"]


@pytest.mark.usefixtures("_built")
def test_a_library_of_other_sources_is_missing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    functions.rans_functions.cache_clear()
    monkeypatch.setitem(functions._RANS, "of_tomorrow", (None, ()))
    (check,) = health.checks()
    functions.rans_functions.cache_clear()
    assert check["status"] == "missing"
    assert "built from other sources (_kernels has no ciera_rans_of_tomorrow)" in check["found"]


def test_torch_is_not_imported() -> None:
    code = "import sys\nfrom ciera_piper_core.exponents.health import checks\nchecks()\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
