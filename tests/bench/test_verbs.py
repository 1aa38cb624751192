"""characterize, run and report as users meet them: files, tables, JSON, exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench.errors import UsageError
from bench.platform_profile import PlatformProfile
from bench.verbs import characterizing_suites, parse_ranks
from tests.program import bench, json_lines

if TYPE_CHECKING:
    from pathlib import Path

FAULTY = "tests.faulty_suite:FaultySuite"


def test_ranks_are_numbers_lists_and_ranges() -> None:
    assert parse_ranks("") == ()
    assert parse_ranks("4") == (4,)
    assert parse_ranks("2:8,12") == (2, 4, 8, 12)
    for wrong in ("x", "2,", "1.5"):
        with pytest.raises(UsageError, match="--ranks needs whole numbers"):
            parse_ranks(wrong)


@pytest.mark.slow
def test_characterize_ends_by_naming_a_profile_and_a_report(tmp_path: Path) -> None:
    arguments = ("--select=op=all_gather", "--select=kernel=copy", "--select=bytes=1KiB,64KiB", "--select=tokens=256")
    more = ("--select=sequence=512", "--select=dtype=float32,bfloat16", "--max-time=0.02", "--ranks=2")
    done = bench("characterize", *arguments, *more, "--output", "here", cwd=tmp_path, timeout=170)
    assert done.returncode == 0, done.stderr
    profile_line, report_line = done.stdout.splitlines()[-2:]
    assert profile_line == "profile: here/profile.json"
    assert report_line == "report:  here/report.html"
    profile = PlatformProfile.load(tmp_path / "here" / "profile.json")
    assert profile.memory
    assert profile.collectives
    assert profile.attention
    assert profile.run_ids[0] in (tmp_path / "here" / "report.html").read_text()


def test_a_report_of_stored_runs_as_table_json_and_page(tmp_path: Path) -> None:
    bench("run", FAULTY, "--max-time", "0.02", "--select", "number=0,1", cwd=tmp_path)
    table = bench("report", cwd=tmp_path)
    assert table.returncode == 0
    assert "latency" in table.stdout
    rows = json_lines(bench("report", "latest", "--json", cwd=tmp_path).stdout)
    assert [row["status"] for row in rows] == ["ok", "ok"]
    page = bench("report", rows[0]["run_id"][:13], "--html", "page.html", cwd=tmp_path)
    assert page.stdout == "report: page.html\n"
    assert (tmp_path / "page.html").stat().st_size > 100_000
    missing = bench("report", "1999", cwd=tmp_path)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)


def test_rows_go_to_a_file_beside_the_table(tmp_path: Path) -> None:
    done = bench("run", FAULTY, "--max-time", "0.02", "--select", "number=0", "--json", "rows.jsonl", cwd=tmp_path)
    assert "latency" in done.stdout
    assert len(json_lines((tmp_path / "rows.jsonl").read_text())) == 1
    refused = bench("run", FAULTY, "--json", "no/such/folder/rows.jsonl", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_a_file_of_rows_that_fills_its_disk_is_named(tmp_path: Path) -> None:
    done = bench(
        *("run", "tests.faulty_suite:SoloSuite", "--max-time=0.02", "--select=number=0", "--json=/dev/full"),
        cwd=tmp_path,
    )
    assert done.returncode == 4
    assert done.stderr.endswith("bench: cannot write /dev/full: No space left on device\n")


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    bench("run", FAULTY, "--max-time", "0.02", "--select", "number=0", cwd=tmp_path)
    (tmp_path / "file").write_text("in the way")
    done = bench("report", "--html", "file/page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "file" in done.stderr


def test_characterize_measures_every_kind_of_suite() -> None:
    from bench.registry import suite_names

    of_no_machine = {"self", "gate", "planner"}
    # Minutes for one method or one training; the platform does not need them.
    of_a_method = {"allgather_compressed", "gain", "moe_layer", "end_to_end", "migration", "load_balance"}
    assert set(characterizing_suites()) == set(suite_names()) - of_no_machine - of_a_method


def test_list_shows_suites_and_one_suite(tmp_path: Path) -> None:
    everything = bench("list", cwd=tmp_path)
    assert everything.returncode == 0
    assert all(suite in everything.stdout for suite in characterizing_suites())
    one = json.loads(bench("list", "collectives", "--json", cwd=tmp_path).stdout)
    assert {"op", "ranks", "dtype", "bytes"} <= {parameter["name"] for parameter in one["parameters"]}
    assert {metric["name"] for metric in one["metrics"]} == {"latency", "algbw", "busbw", "share_of_bound"}
    assert "busbw/nccl-tests-v1" in bench("list", "collectives", cwd=tmp_path).stdout
    assert bench("list", "colectives", cwd=tmp_path).returncode == 2


def test_list_has_one_line_for_metrics_that_differ_in_a_value_alone(tmp_path: Path) -> None:
    text = bench("list", "migration", cwd=tmp_path).stdout
    assert "load[experts=before, after]" in text
    assert text.count("load/busiest-rank-over-mean-v1") == 1
    names = [
        metric["name"] for metric in json.loads(bench("list", "migration", "--json", cwd=tmp_path).stdout)["metrics"]
    ]
    assert {"load[experts=before]", "load[experts=after]"} <= {*names}
