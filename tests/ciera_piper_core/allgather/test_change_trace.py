"""Change-rate traces: what is written is read again, what is broken is refused, what gathers did is recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.allgather.change_trace import (
    ChangeTrace,
    GatherChanges,
    ShardChanges,
    TraceRecorder,
    trace_of,
)
from ciera_piper_core.allgather.plan import GatherPlan
from ciera_piper_core.allgather.statistics import CodedSegments, GatherSample, Kind
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def shard(name: str = "w", values: int = 2000, changed: tuple[int, ...] = (4, 0), **fields: Any) -> ShardChanges:
    coded = fields.pop("coded_bytes", tuple(10 * each for each in changed))
    return ShardChanges(name, fields.pop("category", "attention"), values, changed, coded)


def changes(*shards: ShardChanges, name: str = "layer", **fields: Any) -> GatherChanges:
    defaults = {"dtype": "bfloat16", "block": 512, "mode": "auto"}
    return GatherChanges(name, **{**defaults, **fields}, shards=shards or (shard(),))


def trace(*gathers: GatherChanges) -> ChangeTrace:
    return ChangeTrace(4, "a model", gathers or (changes(),))


def record_of(written: ChangeTrace, folder: Path) -> dict[str, Any]:
    written.save(folder / "trace.json")
    content: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return content


def load(content: Any, folder: Path) -> ChangeTrace:
    path = folder / "changed.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return ChangeTrace.load(path)


names = st.text(min_size=1, max_size=20)


@st.composite
def traces(draw: st.DrawFn) -> ChangeTrace:
    gathers = []
    for gather in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        count = draw(st.integers(1, 5))
        block = draw(st.sampled_from([64, 512, 1024]))
        shards = []
        for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
            values = draw(st.integers(0, 10**9))
            series = [
                tuple(draw(st.lists(st.integers(0, most), min_size=count, max_size=count)))
                for most in (-(-values // block), values)
            ]
            shards.append(ShardChanges(name, draw(names), values, series[0], series[1]))
        kind = draw(st.sampled_from(["bfloat16", "float16", "float32"]))
        gathers.append(
            GatherChanges(gather, kind, block, draw(st.sampled_from(["block", "delta", "auto"])), tuple(shards))
        )
    return ChangeTrace(draw(st.integers(2, 10**6)), draw(st.text()), tuple(gathers))


@settings(max_examples=80, deadline=None)
@given(traces())
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, written: ChangeTrace) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    written.save(path)
    assert ChangeTrace.load(path) == written


def test_traffic_is_in_shares_and_bytes() -> None:
    (carried,) = trace(changes(shard(values=2000, changed=(4, 1)), block=512)).traffic()
    assert carried.shards[0].changed.tolist() == [1.0, 0.25]
    assert carried.shards[0].coded_bytes.tolist() == [40.0, 10.0]
    assert (carried.name, carried.block, carried.mode, carried.layout.dtype) == ("layer", 512, "auto", torch.bfloat16)
    assert carried.shards[0].category == "attention"


def test_an_empty_shard_has_traffic() -> None:
    (carried,) = trace(changes(shard(values=0, changed=(0,)))).traffic()
    assert carried.shards[0].changed.tolist() == [0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: changes(dtype="float8"), "dtype is one of bfloat16, float16, float32, not 'float8'"),
        (lambda: changes(block=100), "block is one of 64, 128"),
        (lambda: changes(mode="best"), "mode is one of block, delta, auto"),
        (lambda: GatherChanges("layer", "bfloat16", 512, "auto", ()), "has no shard"),
        (lambda: changes(shard(changed=(1, 2), coded_bytes=(1,))), "as many numbers"),
        (lambda: changes(shard(changed=())), "as many numbers"),
        (lambda: changes(shard(values=2000, changed=(5,))), "it has 4 blocks, so from 0 to 4"),
        (lambda: changes(shard(changed=(-1,), coded_bytes=(0,))), "from 0 to 4"),
        (lambda: changes(shard(changed=(1,), coded_bytes=(10**6,))), "from 0 to 8096 bytes"),
        (lambda: changes(shard(values=-1, changed=(0,))), "cannot have -1 values"),
        (lambda: changes(shard(values=1 << 60, changed=(0,))), "values"),
        (lambda: ChangeTrace(1, "", (changes(),)), "2 ranks or more"),
        (lambda: ChangeTrace(2, "", ()), "at least one gather"),
        (lambda: trace(changes(), changes()), "two gathers are named 'layer'"),
        (lambda: trace(changes(shard("a"), shard("a"))), "two shards of one name"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("path", ["", "gathers.0", "gathers.0.shards.0"])
def test_each_missing_or_unknown_key_is_named(tmp_path: Path, path: str) -> None:
    def place(content: Any) -> Any:
        for step in path.split(".") if path else ():
            content = content[int(step) if step.isdigit() else step]
        return content

    for key in place(record_of(trace(), tmp_path)):
        if key in ("format", "schema_version"):
            continue
        broken = record_of(trace(), tmp_path)
        del place(broken)[key]
        with pytest.raises(ValueError, match=f"changed.json is not valid: .* lacks '{key}'"):
            load(broken, tmp_path)
    broken = record_of(trace(), tmp_path)
    place(broken)["surprise"] = 1
    with pytest.raises(ValueError, match="unknown key 'surprise'"):
        load(broken, tmp_path)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("world",), True, "world is no whole number"),
        (("world",), 2.5, "world is no whole number"),
        (("source",), None, "source is no text"),
        (("gathers",), {}, "gathers is no list"),
        (("gathers", 0), [], r"gathers\[0\] is no object"),
        (("gathers", 0, "name"), 5, r"gathers\[0\].name is no text"),
        (("gathers", 0, "shards", 0, "values"), "5", r"shards\[0\].values is no whole number"),
        (("gathers", 0, "shards", 0, "changed_blocks"), 5, "changed_blocks is no list"),
        (("gathers", 0, "shards", 0, "coded_bytes"), [1.5, 2], "coded_bytes is no whole number"),
    ],
)
def test_wrong_types_are_named(tmp_path: Path, keys: tuple[Any, ...], value: Any, message: str) -> None:
    content = record_of(trace(), tmp_path)
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(ValueError, match=message):
        load(content, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cut off or no JSON"),
        ('{"format": "ciera_change_tr', "cut off or no JSON"),
        ("[" * 100_000, "nested too deeply|cut off"),
        ("[]", "is no change-rate trace"),
        ({"format": "something"}, "is no change-rate trace"),
        ({"format": "ciera_change_trace", "schema_version": 2}, "schema version 2, this program reads 1"),
        ({"format": "ciera_change_trace"}, "schema version None"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load(content, tmp_path)
    assert "changed.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read the trace .*none\.json: No such file"):
        ChangeTrace.load(tmp_path / "none.json")


def test_every_cut_is_refused(tmp_path: Path) -> None:
    trace().save(tmp_path / "whole.json")
    text = (tmp_path / "whole.json").read_text().rstrip()
    for end in range(0, len(text), 7):
        with pytest.raises(ValueError, match=r"changed\.json"):
            load(text[:end], tmp_path)


def plan(*names_of: str, selected: tuple[str, ...] | None = None) -> GatherPlan:
    whole = GatherPlan.from_sizes([(name, 1000) for name in names_of], torch.bfloat16, name="layer")
    return whole if selected is None else whole.with_selection(selected)


def sample(kind: Kind, **counts: tuple[int, int]) -> GatherSample:
    each = np.ones(len(counts), dtype=np.int64)
    coded = CodedSegments(tuple(counts), 2 * each, 2000 * each, 1000 * each)
    found = np.array([(1, changed, changed * 512, size) for changed, size in counts.values()])
    return GatherSample(1, kind, False, 0, 0, 0, 0, 0, ((coded, found),) if counts else ())


def test_a_recorder_keeps_coded_gathers_in_order() -> None:
    recorder = TraceRecorder(plan("a", "b"))
    recorder.add(sample("refresh"))
    recorder.add(sample("coded", a=(2, 30), b=(1, 20)))
    recorder.add(sample("coded", a=(0, 0), b=(0, 0)))
    assert recorder.gathers == 2
    recorded = recorder.changes()
    assert [(one.name, one.changed_blocks, one.coded_bytes) for one in recorded.shards] == [
        ("a", (2, 0), (30, 0)),
        ("b", (1, 0), (20, 0)),
    ]
    assert (recorded.name, recorded.dtype, recorded.block, recorded.mode) == ("layer", "bfloat16", 512, "auto")


def test_a_recorder_of_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="compresses nothing"):
        TraceRecorder(plan("a", selected=()))
    with pytest.raises(ValueError, match="no coded gather of plan 'layer'"):
        TraceRecorder(plan("a")).changes()


def test_a_segment_of_another_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="plan 'layer' does not compress 'c'"):
        TraceRecorder(plan("a")).add_counts({"a": (1, 1), "c": (1, 1)})


def test_only_what_is_compressed_is_recorded() -> None:
    recorder = TraceRecorder(plan("a", "b", selected=("b",)))
    recorder.add(sample("coded", b=(1, 20)))
    assert [one.name for one in recorder.changes().shards] == ["b"]


def test_the_fullest_rank_stands_for_all(tmp_path: Path) -> None:
    def body(context: Context) -> ChangeTrace:
        recorders = []
        for place, name in enumerate(("first", "second")):
            recorder = TraceRecorder(GatherPlan.single(1000, torch.bfloat16, name=name))
            # Rank 1's payload is the fullest of the first gather, rank 0's of the second.
            fullest = context.group.rank == 1 - place
            recorder.add_counts({name: (2, 500 if fullest else 100)})
            recorders.append(recorder)
        return trace_of(recorders, context.group.data, "made up")

    ranks = run_world(2, body, tmp_path)
    assert ranks[0] == ranks[1]
    assert [gather.shards[0].coded_bytes for gather in ranks[0].gathers] == [(500,), (500,)]
    assert (ranks[0].world, ranks[0].source) == (2, "made up")


def test_a_rank_without_a_gather_is_named_on_all(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        recorder = TraceRecorder(plan("a"))
        if context.group.rank == 0:
            recorder.add_counts({"a": (1, 1)})
        with pytest.raises(ValueError, match="rank 1: no coded gather") as caught:
            trace_of([recorder], context.group.data, "made up")
        return str(caught.value)

    ranks = run_world(2, body, tmp_path)
    assert ranks[0] == ranks[1]
