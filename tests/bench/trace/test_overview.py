"""Several ranks together, and the three ways of showing them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from bench.errors import BenchError
from bench.trace.breakdown import break_down_files
from bench.trace.html import render as render_html
from bench.trace.html import write_html
from bench.trace.overview import Overview
from bench.trace.terminal import render
from tests.bench.trace.made_up import GEMM, KNOWN, event, kernel, step, write

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA = Path(__file__).parents[2] / "data" / "traces"
HOSTILE = "rank7.<script>alert(1)</script>\x1b[31m[red].json"


def overview_of(*paths: Path) -> Overview:
    return Overview.of(break_down_files(paths))


def shown(overview: Overview, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render(overview))
    return out.getvalue()


def training() -> Sequence[Path]:
    return [DATA / f"training_128_ranks_rank{rank}.json.gz" for rank in (0, 1)]


def test_the_mean_is_over_ranks_and_steps() -> None:
    overview = overview_of(*training())
    durations = [found.duration_us for rank in overview.ranks for found in rank.steps]
    assert overview.mean.duration_us == pytest.approx(sum(durations) / len(durations))
    assert [found.step for found in overview.steps] == [551, 552]
    assert overview.calls["all_to_all"] == 8
    assert overview.remarks == ()


def test_the_terminal_shows_ranks_collectives_and_steps() -> None:
    text = shown(overview_of(*training()))
    assert re.search(r"^rank 0 +615 ms +17% +27% +0.0% +55% +0.0% +4.8%", text, re.MULTILINE)
    assert re.search(r"^all_gather +4 +52.8 ms +27% +52.8 ms +8.5%", text, re.MULTILINE)
    assert "of the communication 27% is all-gather, 0.0% reduce-scatter, 73% other" in text
    assert re.search(r"^552 +627 ms", text, re.MULTILINE)


def test_json_has_shares_that_add_up() -> None:
    record = json.loads(json.dumps(overview_of(*training()).to_dict(), allow_nan=False))
    assert record["schema_version"] == 1
    for found in (record["mean_over_ranks"], *record["steps"], *(rank["whole"] for rank in record["ranks"])):
        assert sum(found["shares"].values()) == pytest.approx(1)
        assert sum(found["communication_shares"].values()) == pytest.approx(1)


def test_mixed_and_empty_traces_are_remarked(tmp_path: Path) -> None:
    host = write(tmp_path / "rank1.json", [event("cpu_op", "aten::mm", 0, 10, 1)], rank=1)
    gpu = write(tmp_path / "rank0.json", [*KNOWN, {**kernel(GEMM, 0, 1), "ts": "soon"}])
    empty = write(tmp_path / "rank2.json", [], rank=2)
    text = shown(overview_of(host, gpu, empty))
    assert "no device in the trace of rank 1, rank 2" in text
    assert "not every trace marks steps, so whole traces are shown" in text
    assert "rank 0: 1 event(s) without a usable time are left out" in text
    assert "nothing to break down in rank 2" in text


def test_no_communication_at_all(tmp_path: Path) -> None:
    overview = overview_of(write(tmp_path / "a.json", [step(0, 0, 10), kernel(GEMM, 0, 10)]))
    assert "no communication in these traces" in shown(overview)
    assert "No communication in these traces" in render_html(overview)


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "<b>folder<b>"
    folder.mkdir()
    name = HOSTILE.replace("/", "_")
    path = write(folder / name, KNOWN, rank=None)
    other = write(folder / f"2{name}", KNOWN, rank=None)
    overview = overview_of(path, other)
    page = render_html(overview)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;b&gt;folder&lt;b&gt;" in page
    text = shown(overview, 250)
    assert "\x1b[31m" not in text
    assert "[red]" in text


def test_the_page_stands_alone(tmp_path: Path) -> None:
    page = write_html(tmp_path / "a.html", overview_of(*training())).read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    widths = [float(width) for width in re.findall(r'<rect class="\w+" x="[\d.]+" y="0" width="([\d.]+)"', page)]
    bars = [sum(widths[i : i + 5]) for i in range(0, len(widths), 5)]
    assert bars == pytest.approx([1000] * 5, abs=0.5)
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="name another file or folder"):
        write_html(tmp_path / "file" / "b.html", overview_of(*training()))
