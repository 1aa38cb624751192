"""Backends by name: what runs here, what does not and why, and which one is used when nobody says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.exponents import backend as registry
from ciera_piper_core.exponents.backend import BACKENDS, BackendUnavailableError, available, backend, default_backend
from ciera_piper_core.exponents.native import functions, library

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fresh() -> Iterator[None]:
    """No memory of checks that passed, before and after."""
    registry._checked.cache_clear()
    yield
    registry._checked.cache_clear()


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """As where no compiler was."""

    def missing() -> None:
        raise library.NativeUnavailableError("the native kernels were not built; install a C compiler")

    monkeypatch.setattr(library, "load", missing)
    library.best_isa.cache_clear()


def test_reference_runs_everywhere_and_every_backend_has_an_answer() -> None:
    answers = available()
    assert tuple(answers) == BACKENDS
    assert answers["reference"] == ""
    for name, reason in answers.items():
        if reason:
            with pytest.raises(BackendUnavailableError, match=f"backend {name} does not run here"):
                backend(name)
        else:
            assert backend(name).name == name


def test_wrong_questions_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown backend 'cuda'; known: reference, native, triton, nvcomp"):
        backend("cuda")
    with pytest.raises(ValueError, match="reference has no instruction levels"):
        backend("reference", isa="avx2")
    with pytest.raises(ValueError, match="0 threads"):
        backend("reference", threads=0)


@pytest.mark.parametrize("isa", library.ISA_LEVELS)
def test_native_runs_at_the_level_asked_for(isa: str) -> None:
    if isa not in library.available_isas():
        pytest.skip(f"this processor has no {isa}, or the C libraries were not built")
    found = backend("native", isa, threads=3)
    assert (found.isa, found.threads, found.kernels.name) == (isa, 3, "native")


def test_an_unknown_level_is_refused() -> None:
    if not library.available_isas():
        pytest.skip("the C libraries were not built")
    with pytest.raises(ValueError, match="unknown instruction level 'sse'"):
        backend("native", "sse")


def test_the_variable_holds_native_to_a_lower_level(monkeypatch: pytest.MonkeyPatch) -> None:
    if not library.available_isas():
        pytest.skip("the C libraries were not built")
    monkeypatch.setenv(library.ISA_VARIABLE, "scalar")
    assert default_backend().isa == "scalar"


@pytest.mark.usefixtures("not_built")
def test_without_a_compiler_reference_serves_and_the_reason_says_what_to_do() -> None:
    assert "install a C compiler" in available()["native"]
    with pytest.warns(RuntimeWarning, match="install a C compiler; reference serves, which is slow"):
        assert default_backend().name == "reference"
    with pytest.warns(RuntimeWarning, match="reference serves"):
        assert default_backend(threads=2).name == "reference"


@pytest.mark.usefixtures("fresh")
@pytest.mark.skipif(not library.available_isas(), reason="the native kernels were not built")
@pytest.mark.parametrize(
    ("bound", "signatures"),
    [("planes_functions", "_PLANES"), ("rans_functions", "_RANS"), ("segments_functions", "_SEGMENTS")],
)
def test_libraries_of_other_sources_are_a_reason(bound: str, signatures: str, monkeypatch: pytest.MonkeyPatch) -> None:
    getattr(functions, bound).cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(getattr(functions, signatures), "of_tomorrow", (None, ()))
        with pytest.raises(BackendUnavailableError, match="built from other sources"):
            backend("native")
        assert "built from other sources" in available()["native"]
        with pytest.warns(RuntimeWarning, match="reference serves"):
            assert default_backend().name == "reference"
    assert backend("native").name == "native"


@pytest.mark.usefixtures("fresh")
def test_a_backend_that_computes_something_else_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    if available()["native"]:
        pytest.skip(available()["native"])
    from ciera_piper_core.exponents.native.planes import NativeKernels

    registry._checked.cache_clear()
    right = NativeKernels.merge_checked
    monkeypatch.setattr(NativeKernels, "merge_checked", lambda *arguments: right(*arguments) ^ 2**63)
    assert "kernel merge_checked computes something else" in available()["native"]
    with pytest.warns(RuntimeWarning, match="kernel merge_checked computes something else"):
        assert default_backend().name == "reference"
    monkeypatch.undo()
    # A failure is not remembered: what was wrong may have been mended.
    assert available()["native"] == ""


@pytest.mark.parametrize("name", ["triton", "nvcomp"])
def test_a_missing_package_is_a_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"triton": "ciera_piper_core.exponents.triton", "nvcomp": "ciera_piper_core.exponents.nvcomp"}[name]
    monkeypatch.setitem(sys.modules, module, None)
    assert module in available()[name]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nvcomp_gives_a_reason_and_the_cpu_has_a_default() -> None:
    assert available()["nvcomp"]
    assert default_backend("cpu").name in ("native", "reference")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_has_a_default_of_its_own() -> None:
    assert default_backend("cuda").name in ("nvcomp", "triton")


def test_whole_shards_are_for_one_thread() -> None:
    """Several threads share the blocks of each segment instead."""
    assert not backend("reference").whole_shards
    if not available()["native"]:
        assert backend("native").whole_shards
        assert not backend("native", threads=2).whole_shards
