"""The build compiles every C source, and builds again when any file changes; levels and errors of the library."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ciera_piper_core.exponents.native.library import (
    ISA_LEVELS,
    NAME,
    NativeUnavailableError,
    available_isas,
    best_isa,
    chosen_isa,
    function,
    load,
)

ROOT = Path(__file__).resolve().parents[4]
NATIVE = Path("ciera_piper_core/exponents/native")
(EXTENSION,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]

built = pytest.mark.skipif(not available_isas(), reason="the native kernels were not built")


def test_the_build_names_every_source() -> None:
    there = {str(NATIVE / path.name) for path in (ROOT / NATIVE).glob("*.c")}
    assert EXTENSION["name"].endswith(f".native.{NAME}")
    assert set(EXTENSION["sources"]) == there
    assert EXTENSION["optional"], "a machine without a compiler must still be able to install"


def test_the_build_watches_every_header() -> None:
    there = {str(NATIVE / path.name) for path in (ROOT / NATIVE).glob("*.h")}
    assert set(EXTENSION["depends"]) == there


@built
def test_levels_come_lowest_first_and_the_best_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CIERA_ISA", raising=False)
    assert available_isas() == ISA_LEVELS[: len(available_isas())]
    assert available_isas()[-1] == best_isa() == chosen_isa()
    assert chosen_isa("scalar") == "scalar"


@built
def test_the_environment_holds_the_level_down_unless_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIERA_ISA", "scalar")
    assert chosen_isa() == "scalar"
    assert chosen_isa(best_isa()) == best_isa()


@built
def test_unknown_levels_are_refused_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"unknown instruction level 'sse9'; known: scalar, avx2, avx512"):
        chosen_isa("sse9")
    monkeypatch.setattr("ciera_piper_core.exponents.native.library.best_isa", lambda: "avx2")
    with pytest.raises(ValueError, match="no avx512; the best that it has is avx2"):
        chosen_isa("avx512")


@built
def test_a_library_of_other_sources_says_to_build_it_again() -> None:
    assert function("ciera_planes_best_isa")() == ISA_LEVELS.index(best_isa())
    with pytest.raises(NativeUnavailableError, match=r"other sources \(_kernels has no ciera_planes_worst_isa\)"):
        function("ciera_planes_worst_isa")


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ciera_piper_core.exponents.native.library.NAME", "_none_such")
    load.cache_clear()
    with pytest.raises(NativeUnavailableError, match="install a C compiler"):
        load()
