"""Trace files, whole and broken: what is read, and the one line that says why not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.trace.breakdown import break_down_files
from bench.trace.kineto import read_document, read_traces
from tests.bench.trace.made_up import GEMM, KNOWN, kernel, write

DATA = Path(__file__).parents[2] / "data" / "traces"


def test_plain_gzipped_and_bare_lists_are_the_same(tmp_path: Path) -> None:
    plain, zipped = write(tmp_path / "a.json", KNOWN), write(tmp_path / "a.json.gz", KNOWN)
    bare = tmp_path / "rank-0.json"
    bare.write_text(json.dumps(list(KNOWN)))
    events = [read_traces(path)[0].events for path in (plain, zipped, bare)]
    assert events[0] == events[1] == events[2]
    assert len(events[0]) == len(KNOWN)
    assert events[0][0].start == 0.0
    assert read_traces(bare)[0].rank == 0


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("worker.rank-12.pt.trace.json", 12),
        ("Rank_7.json", 7),
        ("x.json", None),
        ("ranks.json", None),
    ],
)
def test_the_rank_from_the_name_where_the_file_has_none(tmp_path: Path, name: str, rank: int | None) -> None:
    assert read_traces(write(tmp_path / name, KNOWN, rank=None))[0].rank == rank


def test_what_has_no_usable_time_is_counted(tmp_path: Path) -> None:
    good = kernel(GEMM, 5, 5)
    bad = [{**good, "ts": "soon"}, {**good, "dur": -1}, {**good, "ts": None}, {**good, "ts": True}, 7]
    as_text = {**good, "ts": "12.5", "dur": "2"}
    (trace,) = read_traces(write(tmp_path / "a.json", [good, *bad, as_text, {**good, "ph": "i"}]))
    assert (len(trace.events), trace.unreadable) == (2, len(bad))


def broken(folder: Path) -> dict[str, bytes]:
    whole = write(folder / "whole.json.gz", KNOWN).read_bytes()
    text = write(folder / "whole.json", KNOWN).read_bytes()
    return {
        "cut gzip": whole[: len(whole) // 2],
        "cut JSON": text[: len(text) // 2],
        "cut inside gzip": gzip.compress(text[: len(text) // 3]),
        "damaged gzip": whole[:20] + bytes(30) + whole[50:],
        "empty": b"",
        "an ELF": b"\x7fELF\x02\x01\x01" + bytes(range(256)),
        "prose": b"root:x:0:0::/root:/bin/sh\n",
        "other JSON": b'{"benchmarks": []}',
        "a number": b"3",
        "events of no list": b'{"traceEvents": {"a": 1}}',
        "deep": b"[" * 200_000,
    }


BROKEN = (
    "cut gzip",
    "cut JSON",
    "cut inside gzip",
    "damaged gzip",
    "empty",
    "an ELF",
    "prose",
    "other JSON",
    "a number",
    "events of no list",
    "deep",
)


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_or_foreign_file_is_one_clear_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(broken(tmp_path)[what])
    with pytest.raises(UsageError) as caught:
        read_document(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 300
    if what.startswith("cut"):
        assert "cut short" in message


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_traces(tmp_path / "none.json")


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "M", "s", 3])},
    optional={
        "cat": st.sampled_from(["kernel", "cpu_op", "user_annotation", "gpu_memcpy", "cuda_runtime"]) | values,
        "name": st.sampled_from(["ncclDevKernel_SendRecv", "ProfilerStep#9", "gloo:all_reduce", "c10d::send"]) | values,
        **dict.fromkeys(("ts", "dur"), st.floats(-1e6, 1e6) | values),
        **dict.fromkeys(("pid", "tid"), values),
        "args": st.dictionaries(st.sampled_from(["correlation", "Collective name", "stream"]), values) | values,
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.lists(fields | values, max_size=8), st.dictionaries(st.sampled_from(["distributedInfo", "x"]), values))
def test_no_json_breaks_it_and_the_parts_always_add_up(
    tmp_path: Path, events: list[object], more: dict[str, object]
) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps({"traceEvents": events, **more}))
    (rank,) = break_down_files([path])
    for one in (rank.whole, *rank.steps):
        parts = one.compute_us + one.exposed_us + one.copies_us + one.idle_us + one.residual_us
        assert parts == pytest.approx(one.duration_us, abs=1e-6)
        assert min(one.compute_us, one.exposed_us, one.copies_us, one.idle_us) >= 0
        assert one.residual_us > -1e-6


def test_real_files_are_read() -> None:
    for path in sorted(DATA.glob("*.json.gz")):
        (trace,) = read_traces(path)
        assert trace.unreadable == 0
        assert len(trace.events) > 100
