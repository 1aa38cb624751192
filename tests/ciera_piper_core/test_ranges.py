"""Tests of ranges: what each recorder sees, and what a region costs when nobody records."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import timeit
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.ranges import Span, recording, region

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
LARGEST_IDLE_COST_NS = 1000
"""Measured 150 ns on an idle core; another tenant may take much of one."""


@region("decorated")
def add_one(x: torch.Tensor) -> torch.Tensor:
    """Adds one."""
    return x + 1


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def test_recording_sees_nested_regions_inner_first() -> None:
    with recording() as spans, region("outer"), region("inner"):
        pass
    inner, outer = spans
    assert names(spans) == ["inner", "outer"]
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert inner.thread == threading.get_ident()


def test_recording_sees_only_what_begins_and_ends_inside() -> None:
    early, late = region("early"), region("late")
    with region("before"):
        pass
    early.__enter__()
    with recording() as spans:
        early.__exit__()
        with region("inside"):
            pass
        late.__enter__()
    late.__exit__()
    assert names(spans) == ["inside"]


def test_recordings_nest() -> None:
    with recording() as outer:
        with recording() as inner, region("a"):
            pass
        with region("b"):
            pass
    assert names(inner) == ["a"]
    assert names(outer) == ["a", "b"]


def test_a_region_ends_when_its_body_raises() -> None:
    def fail() -> None:
        with region("failing"):
            raise RuntimeError

    with recording() as spans:
        with pytest.raises(RuntimeError):
            fail()
        with region("next"):
            pass
    assert names(spans) == ["failing", "next"]


def test_a_recording_waits_at_both_edges_and_once_for_all() -> None:
    waits: list[str] = []

    def settle() -> None:
        waits.append("settled")

    with recording(settle), recording(settle), recording() as spans, region("kernels"):
        assert waits == ["settled"]
    assert waits == ["settled"] * 2
    assert names(spans) == ["kernels"]
    with region("nobody records"):
        pass
    assert len(waits) == 2


def test_recording_sees_all_threads() -> None:
    with recording() as spans:
        thread = threading.Thread(target=add_one, args=(torch.zeros(1),))
        thread.start()
        thread.join()
    assert names(spans) == ["decorated"]
    assert spans[0].thread != threading.get_ident()


def test_a_decorated_function_keeps_its_face_and_may_recurse() -> None:
    @region("factorial")
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n > 1 else 1

    assert (add_one.__name__, add_one.__doc__) == ("add_one", "Adds one.")
    with recording() as spans:
        assert factorial(4) == 24
    assert names(spans) == ["factorial"] * 4


def test_torchs_profiler_sees_regions() -> None:
    with torch.profiler.profile() as profiled, region("profiled.part"):
        torch.ones(4).sum()
    with region("unprofiled"):
        pass
    found = {event.key for event in profiled.key_averages()}
    assert "profiled.part" in found
    assert "unprofiled" not in found


def test_a_profiler_may_start_and_stop_inside_regions() -> None:
    profile = torch.profiler.profile()
    with region("starts inside"):
        profile.__enter__()  # type: ignore[no-untyped-call]
    ends = region("stops inside")
    ends.__enter__()
    profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    ends.__exit__()
    with recording() as spans, region("after"):
        pass
    assert names(spans) == ["after"]


def test_compiled_code_has_no_graph_break() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        with region("step"):
            return add_one(x) * 2

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    with recording() as spans:
        assert compiled(torch.tensor(1.0)).item() == 4.0
    assert spans == []


def test_nvtx_tools_see_regions(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler to build an NVTX tool")
    tool = tmp_path / "nvtx_tool.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-D_GNU_SOURCE", str(HERE / "nvtx_tool.c"), "-o", str(tool)], check=True
    )
    program = (
        "from ciera_piper_core.ranges import region\n"
        "for _ in range(2):\n"
        "    with region('outer'):\n"
        "        with region('inner'): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"NVTX_INJECTION64_PATH": str(tool)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    once = ["push ciera_piper outer", "push ciera_piper inner", "pop ciera_piper", "pop ciera_piper"]
    assert done.stdout.splitlines() == once * 2


@pytest.mark.alone
def test_a_region_costs_little_when_nobody_records() -> None:
    def marked() -> None:
        with region("idle"):
            pass

    def bare() -> None:
        pass

    def least_ns(function: Callable[[], None]) -> float:
        # Short repeats and the thread's own time, so that other programs cost little.
        return min(timeit.repeat(function, timer=time.thread_time_ns, number=1000, repeat=100)) / 1000

    assert least_ns(marked) - least_ns(bare) < LARGEST_IDLE_COST_NS
