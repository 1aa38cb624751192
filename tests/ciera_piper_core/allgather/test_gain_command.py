"""The verb ``bench gain`` as users call it: table, JSON, budget, and errors of one line."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from ciera_piper_core.allgather.change_trace import ChangeTrace, GatherChanges, ShardChanges
from ciera_piper_core.allgather.gain_command import gain as gain_verb
from ciera_piper_core.allgather.gain_command import parse_budget
from tests.ciera_piper_core.allgather.test_profile_model import content_with_codec, written

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a profile and a trace of two gathers."""
    written(content_with_codec(), tmp_path)
    blocks = MIB // 512
    gathers = tuple(
        GatherChanges(
            name,
            "bfloat16",
            512,
            "auto",
            (
                ShardChanges("wq", "attention", MIB, (blocks, 0), (9000, 0)),
                ShardChanges("experts", "expert FFN", 4 * MIB, (blocks, 0), (40_000, 0)),
                ShardChanges("norm", "layer norm", 16, (1, 0), (20, 0)),
            ),
        )
        for name in ("layers.0", "layers.1")
    )
    ChangeTrace(2, "two layers", gathers).save(tmp_path / "trace.json")
    return tmp_path


def gain(folder: Path, *arguments: str, trace: str = "trace.json") -> subprocess.CompletedProcess[str]:
    """What ``bench gain`` prints and ends with, in this process."""
    app = typer.Typer(rich_markup_mode=None)
    app.command()(gain_verb)
    output, errors = io.StringIO(), io.StringIO()
    status = 0
    line = [str(folder / trace), "--profile", str(folder), *arguments]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            get_command(app).main(line, "gain", standalone_mode=False)
        except Exception as error:
            # As bench.cli.main does with click's own usage errors.
            print(f"bench: {error.format_message()}", file=errors)  # type: ignore[attr-defined]
            status = 2
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def record_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_the_table_has_a_line_a_shard_and_says_what_it_rests_on(folder: Path) -> None:
    done = gain(folder)
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "trace: two layers",
        "Comm: allgather_latency, 2 ranks on 1 node(s), loopback",
        "kernels: codec rows: native avx512, 1 thread(s), bfloat16; encoding is on the critical path",
        "cache budget: none",
        "expert FFN",
        "compress (4): its gather is faster with it compressed",
        "all gathers once:",
        "note: kernel times are extrapolated",
    ):
        assert part in done.stdout
    assert sum(line.startswith("layers.") for line in done.stdout.splitlines()) == 6


def test_json_adds_up(folder: Path) -> None:
    record = record_of(gain(folder, "--json"))
    assert (record["ranks"], record["nodes"], record["pipelined"], record["budget_bytes"]) == (2, 1, False, None)
    assert len(record["shards"]) == 6
    for one in record["shards"]:
        assert one["gain_us"] == pytest.approx(one["comm_saved_us"] - one["encode_us"] - one["decode_us"])
        assert one["saved_bytes"] == pytest.approx(one["plain_bytes"] - one["sent_bytes"], abs=1)
        assert one["reason"]
    for each in record["gathers"]:
        assert each["gain_us"] == pytest.approx(each["plain_us"] - each["predicted_us"])
        assert each["selected"] == 2
    chosen = [one for one in record["shards"] if one["verdict"] == "compress"]
    assert record["cache_bytes"] == sum(one["cache_bytes"] for one in chosen) == 2 * 2 * 5 * MIB
    assert {one["category"] for one in chosen} == {"attention", "expert FFN"}


def test_a_budget_rules_out_the_rest(folder: Path) -> None:
    record = record_of(gain(folder, "--budget", "9MiB", "--json"))
    assert record["budget_bytes"] == 9 * MIB
    assert 0 < record["cache_bytes"] <= 9 * MIB
    assert "over budget" in {one["verdict"] for one in record["shards"]}
    text = gain(folder, "--budget", "0").stdout
    assert "Nothing is worth compressing: all gathers stay plain" in text
    assert "cache budget: 0 B" in text


def test_options_change_the_prediction(folder: Path) -> None:
    plain, hidden = (record_of(gain(folder, *extra, "--json")) for extra in ((), ("--pipelined",)))
    assert sum(one["encode_us"] for one in hidden["shards"]) == 0
    assert hidden["gathers"][0]["gain_us"] > plain["gathers"][0]["gain_us"]
    strict = record_of(gain(folder, "--margin", "0.9", "--json"))
    assert strict["cache_bytes"] == 0
    assert "gather too slow" in {one["verdict"] for one in strict["shards"]}


def test_the_table_can_be_short(folder: Path) -> None:
    done = gain(folder, "--top", "1")
    assert sum(line.startswith("layers.") for line in done.stdout.splitlines()) == 1
    assert "(5 more; --top 0 shows all)" in done.stdout
    assert "more; --top" not in gain(folder, "--top", "0").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "64"), "no all_gather of 64 ranks"),
        (("--scope", "lab"), "no all_gather of 2 ranks, lab"),
        (("--isa", "avx2"), "no codec rows of bfloat16 avx2"),
        (("--budget", "1M"), "--budget takes bytes"),
        (("--budget", "-5"), "--budget takes bytes"),
        (("--margin", "2"), "margin"),
    ],
)
def test_a_wrong_request_is_one_line(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = gain(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_no_trace_is_one_line(folder: Path) -> None:
    (folder / "other.json").write_text("{}")
    done = gain(folder, trace="other.json")
    assert done.returncode == 2
    assert "other.json is no change-rate trace" in done.stderr
    done = gain(folder, trace="profile.json")
    assert "profile.json is no change-rate trace" in done.stderr


def test_a_trace_of_several_types_is_refused(folder: Path) -> None:
    one = ShardChanges("w", "other", 10, (0,), (0,))
    gathers = tuple(GatherChanges(dtype, dtype, 512, "auto", (one,)) for dtype in ("bfloat16", "float32"))
    ChangeTrace(2, "mixed", gathers).save(folder / "mixed.json")
    done = gain(folder, trace="mixed.json")
    assert done.returncode == 2
    assert "mixes bfloat16 and float32" in done.stderr


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("1KiB", 1024), ("1.5 MiB", 3 << 19), ("2GB", 2 * 10**9), ("0", 0)]
)
def test_budgets_are_bytes(text: str, count: int) -> None:
    assert parse_budget(text) == count


@pytest.mark.parametrize("text", ["", "1M", "x", "-1", "1e9", "1 2", "9" * 100])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--budget takes bytes"):
        parse_budget(text)


def test_names_cannot_command_the_terminal(folder: Path) -> None:
    record = json.loads((folder / "trace.json").read_text())
    record["gathers"][0]["shards"][0]["category"] = "atten\x1b[2Jtion"
    record["gathers"][0]["name"] = "layers\ud800"
    (folder / "trace.json").write_text(json.dumps(record))
    done = gain(folder)
    assert done.returncode == 0, done.stderr
    assert "atten\\x1b[2Jtion" in done.stdout
    assert "layers\\ud800" in done.stdout
    assert all(letter.isprintable() or letter == "\n" for letter in done.stdout)
