"""nccl-tests' JSON: strings for booleans and NaN, iterations, ranks of several GPUs a process, cut files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).resolve().parents[2] / "data" / "imports" / "nccl-tests" / "json_made.json"


def document(**changes: Any) -> str:
    return json.dumps({**json.loads(FILE.read_text()), **changes})


def test_results_iterations_and_strings_for_numbers(read: Callable) -> None:
    found = read("nccl-tests", "json_made.json")
    assert found.faults == []
    iterations = found.of("iteration_time", bytes=1024)
    assert (iterations.samples, iterations.value) == ([11.0, 14.0, 12.0, 13.0], 12.5)
    assert iterations.definition == "latency/nccl-tests-iteration-v1"
    nan = found.of("latency", bytes=2048, placement="out_of_place")
    assert (nan.status, nan.reason) == ("failed", "the file has 'nan' for a value")
    wrong = found.of("busbw", bytes=4096)
    assert (wrong.status, wrong.wrong, wrong.params["placement"]) == ("failed", 7, "in_place")
    assert found.of("latency", bytes=1024, placement="in_place").params["ranks"] == 4
    assert found.contents.started_at == "2026-03-01T10:11:12.000+00:00"


def test_secrets_of_the_environment_stay_behind(read: Callable) -> None:
    found = read("nccl-tests", "json_made.json")
    assert found.contents.identity["variables"] == {"NCCL_ALGO": "Ring"}
    assert "abcdefghijkl" not in json.dumps([found.contents.identity, found.contents.volatile])


def test_a_process_lists_its_first_gpu_only(read: Callable) -> None:
    config = json.loads(FILE.read_text())["config"]
    devices = [entry | {"rank": 2 * place} for place, entry in enumerate(config["devices"])]
    found = read("nccl-tests", text=document(config=config | {"ngpus": 2, "devices": devices}))
    assert {row.params["ranks"] for row in found.rows} == {8}


def test_a_run_that_broke_off_is_told(read: Callable) -> None:
    assert "broke off" in read("nccl-tests", text=document(out_of_bounds=None)).faults[0][1]
    cut = read("nccl-tests", text=FILE.read_text()[:-200])
    assert cut.rows == []
    assert "cut off" in cut.faults[0][1]


@pytest.mark.parametrize("results", [[], [{}], [3], [{"size": "nan"}], None, {}])
def test_results_that_are_none(read: Callable, results: Any) -> None:
    found = read("nccl-tests", text=document(results=results))
    assert found.rows == []
    assert found.faults


def test_the_operation_may_have_to_be_told(read: Callable) -> None:
    assert "--set op=" in read("nccl-tests", text=document(args=[])).faults[0][1]
    assert read("nccl-tests", text=document(args=[]), op="broadcast").rows[0].params["op"] == "broadcast"
