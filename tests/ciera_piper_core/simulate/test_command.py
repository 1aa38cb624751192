"""The verb ``bench simulate alltoall`` as users call it: output, rows, page, calibration, errors, time."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import time
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from bench.store.row import Row
from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.command import GPUS, SIZES, SKEWED_SIZES, app
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.record import METRICS
from ciera_piper_core.simulate.sizes import parse_gpus, parse_sizes
from ciera_piper_core.simulate.sweep import Sweep, predict_sweep
from tests.program import ROOT, bench, json_lines

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ("--gpus", "8,16,64", "--bytes", "1MiB,16MiB")
POINT = {"simulate": "ciera_piper_core.simulate.command:app"}


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What ``bench simulate alltoall`` prints and ends with, in this process."""
    outer = typer.Typer(rich_markup_mode=None)
    outer.add_typer(app, name="simulate")
    outer.callback()(lambda: None)
    output, errors = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            get_command(outer).main(["simulate", "alltoall", *arguments], "bench", standalone_mode=False)
        except Exception as error:
            # As bench.cli.main does with click's own usage errors.
            print(f"bench: {error.format_message()}", file=errors)  # type: ignore[attr-defined]
            status = 2
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return json_lines(done.stdout)


def value(rows: list[dict[str, Any]], metric: str, **params: object) -> float:
    (found,) = (
        row["value"]
        for row in rows
        if row["metric"] == metric and all(row["params"].get(name) == wanted for name, wanted in params.items())
    )
    return float(found)


def test_defaults_are_the_sweep_of_twelve_twenty_and_five() -> None:
    assert (len(parse_gpus(GPUS)), len(parse_sizes(SIZES)), len(ALGORITHMS)) == (12, 20, 5)
    assert len(parse_sizes(SKEWED_SIZES)) == 3


def test_json_has_a_row_a_metric_and_point() -> None:
    rows = rows_of(simulate(*SMALL, "--json"))
    assert len(rows) == 3 * 2 * (len(ALGORITHMS) * len(METRICS) - 1)
    for row in rows:
        assert Row.from_dict(row).params["scope"] == "simulated"
    for point in predict_sweep(Sweep(load_machine("frontier"), (8, 16, 64), (1 << 20, 1 << 24))):
        assert point.prediction is not None
        where = {"algorithm": point.algorithm, "ranks": point.ranks, "bytes": point.size}
        assert value(rows, "latency", **where) == pytest.approx(1e6 * point.prediction.seconds)
        if point.algorithm != "flat":
            assert value(rows, "speedup_over_flat", **where) == pytest.approx(point.speedup)


def test_the_table_has_what_was_asked_for_and_the_paper_beside_it() -> None:
    done = simulate(*SMALL, "--algorithms", "halo_v1, flat")
    assert done.returncode == 0, done.stderr
    (header,) = (
        line.split() for line in done.stdout.splitlines() if line.startswith("  GPUs") and "flat takes" in line
    )
    assert header == ["GPUs", "nodes", "bytes", "a", "GPU", "flat", "takes", "flat", "halo_v1", "best"]
    assert sum(line.split()[:2] == ["64", "8"] and "MiB" in line for line in done.stdout.splitlines()) == 2
    assert "8.06, 8.03, 7.92" in done.stdout
    other = simulate(*SMALL, "--platform", "dgx-a100")
    assert other.returncode == 0, other.stderr
    assert "8.06" not in other.stdout
    assert "dgx-a100" in other.stdout.splitlines()[0]


def test_the_page_is_written_beside_either_output(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = simulate(*SMALL, "--html", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"page: {path}\n"
    assert json_lines(done.stdout)
    assert "Piper's Fig 8 beside ours" in path.read_text()


def test_skewed_traffic_has_its_seed_in_the_rows() -> None:
    arguments = ("--gpus", "16", "--bytes", "1MiB", "--algorithms", "flat", "--json", "--traffic", "hot_rank,uniform")
    rows = rows_of(simulate(*arguments, "--seed", "3"))
    assert [row["params"]["traffic"] for row in rows[:: len(METRICS) - 1]] == ["hot_rank", "uniform"]
    assert {row["params"].get("seed") for row in rows} == {None, 3}
    assert {row["params"]["engine"] for row in rows} == {"closed form", "max-min"}


MACHINE = """
max_gpus = 32
[node]
gpus = 4
port_bytes_s = 40e9
nics = 2
nic_bytes_s = 10e9
[network]
kind = "fat tree"
nodes_per_leaf = 2
"""


def test_a_machine_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MACHINE)
    rows = rows_of(simulate("--platform", str(path), "--gpus", "16,64", "--bytes", "1GiB", "--json"))
    # Sixteen ranks on four nodes: 12 of 16 shares of two ranks over a NIC of 10 GB/s.
    flat = value(rows, "latency", algorithm="flat", ranks=16)
    assert flat == pytest.approx(2 * 2**30 * 12 / 16 / 10e9 * 1e6)
    refused = [row for row in rows if row["params"]["ranks"] == 64]
    assert {row["status"] for row in refused} == {"skipped"}
    assert "has 32 GPUs" in refused[0]["reason"]


def test_calibration_changes_the_terms_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    slower = MACHINE.replace("nic_bytes_s = 10e9", "nic_bytes_s = 5e9")
    path.write_text(slower)
    measured = simulate("--platform", str(path), "--gpus", "8:32", "--bytes", "64KiB:1GiB", "--json")
    run = tmp_path / "run.jsonl"
    rows = [row for row in rows_of(measured) if row["metric"] == "latency"]
    for row in rows:
        row["params"] = {**row["params"], "scope": "cluster"}
    run.write_text("\n".join(map(json.dumps, rows)))
    path.write_text(MACHINE)
    question = ("--platform", str(path), "--gpus", "16", "--bytes", "256MiB")
    done = simulate(*question, "--calibrate", str(run), "--json")
    calibrated = rows_of(done)
    for algorithm in ALGORITHMS:
        (wanted,) = (
            row["value"]
            for row in rows
            if [row["params"][name] for name in ("algorithm", "ranks", "bytes")] == [algorithm, 16, 1 << 28]
        )
        assert value(calibrated, "latency", algorithm=algorithm) == pytest.approx(wanted, rel=0.02)
    assert "inter_node" in calibrated[0]["params"]["measured"].split("+")
    assert done.stderr.startswith("calibrated with ")
    text = simulate(*question, "--calibrate", str(run)).stdout
    assert "calibrated with " in text
    assert "measured on this machine: " in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--platform", "nowhere"), "'nowhere' is neither a built-in platform"),
        (("--platform", "/none.toml"), "machine file '/none.toml' cannot be read"),
        (("--gpus", "two"), "--gpus takes numbers from 1"),
        (("--gpus", "1"), "nothing can be predicted: an all-to-all needs at least 2 ranks"),
        (("--gpus", "1000000"), "machine 'frontier' has"),
        (("--bytes", "1M"), "ambiguous; write MiB"),
        (("--algorithms", "ring"), "--algorithms takes flat, two_phase"),
        (("--algorithms", ""), "--algorithms takes flat, two_phase"),
        (("--traffic", "rush,uniform"), "unknown traffic 'rush'; known: uniform, "),
        (("--traffic", "replay:/none.jsonl", "--gpus", "4", "--bytes", "1MiB"), "/none.jsonl"),
        (("--calibrate", "/none.jsonl"), "is neither a file nor a run"),
        (("--html", "/none/page.html"), "there is no folder /none"),
    ],
)
def test_a_wrong_request_ends_with_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = simulate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("bench: ")


def test_the_program_answers_the_default_sweep_in_five_seconds(tmp_path: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["bench.commands"]
    metadata = tmp_path / "simulate_verb-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simulate_verb\nVersion: 1\n")
    lines = "\n".join(f"{name} = {target}" for name, target in {**declared, **POINT}.items())
    (metadata / "entry_points.txt").write_text(f"[bench.commands]\n{lines}\n")
    path = f"{ROOT}:{tmp_path}"
    before, begun = os.times(), time.monotonic()
    done = bench("simulate", "alltoall", "--json", cwd=tmp_path, PYTHONPATH=path)
    after = os.times()
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 12 * 20 * (5 * len(METRICS) - 1)
    # Of a process whose machine others share, only its own time can be held to a limit.
    own = after.children_user + after.children_system - before.children_user - before.children_system
    assert own < 5, f"{own:.1f} s of {time.monotonic() - begun:.1f}"
    shown = bench("simulate", "alltoall", "--help", cwd=tmp_path, PYTHONPATH=path)
    assert "Example: bench simulate alltoall" in " ".join(shown.stdout.split())
    wrong = bench("simulate", "alltoall", "--gpus", "0", cwd=tmp_path, PYTHONPATH=path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("bench: --gpus takes numbers from 1")
