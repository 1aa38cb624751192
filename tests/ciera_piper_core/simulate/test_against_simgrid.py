"""Both engines, with all terms off, beside SimGrid's stored answers; and the committed script that asked for them."""

from __future__ import annotations

import json
import subprocess
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ci.simgrid import cases, compare, oracle
from ciera_piper_core.simulate.flows import schedule
from ciera_piper_core.simulate.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "results" / "reference" / "simgrid_alltoall.json"
STORED = compare.stored_answers(REFERENCE)
SYSTEM_PYTHON = "/usr/bin/python3"

TOLERANCE = 0.05
EXACTLY = 1e-3
MOST_EXACT, MOST_SCRAMBLED_EXACT = 64, 16
"""Ranks up to which steps are exact, too; more take long."""

TIMES_FASTER = 50


def group(case: cases.Case) -> tuple[str, int]:
    return case.machine, case.ranks


GROUPS = [(key, list(found)) for key, found in groupby(cases.cases(), key=group)]


def test_every_case_is_answered_as_it_is_described() -> None:
    assert sorted(STORED) == sorted(case.name for case in cases.cases())


def test_the_cases_are_those_that_were_promised() -> None:
    asked = cases.cases()
    assert {case.ranks for case in asked} == {16, 64, 128, 256}
    for ranks in (16, 64, 128, 256):
        kinds = {type(case.network).__name__ for case in asked if case.ranks == ranks}
        assert kinds == {"Dragonfly", "FatTree"}
        for traffic in ("uniform", "hot_rank", "zipf"):
            algorithms = {case.algorithm for case in asked if case.ranks == ranks and case.traffic == traffic}
            assert algorithms == {"flat", "two_phase", "halo_v0", "halo_v1", "halo_v2"}
    assert all(case.network.nodes * case.node.gpus >= case.ranks for case in asked)


def beyond(tolerance: float, found: Iterable[compare.Answer]) -> list[str]:
    """Those answers that differ by more, for people."""
    return [
        f"{each.case.name}, {each.engine}: {each.ours_s:.6g} s, SimGrid {each.simgrid_s:.6g} s, {each.error:+.1%}"
        for each in found
        if not abs(each.error) <= tolerance
    ]


@pytest.mark.parametrize(
    "found", [found for _, found in GROUPS], ids=[f"{name}-{ranks}" for (name, ranks), _ in GROUPS]
)
def test_our_engines_agree_with_simgrid(found: list[cases.Case]) -> None:
    answers = [answer for case in found for answer in compare.answers(case, STORED[case.name])]
    assert {answer.engine for answer in answers} == {"max-min", "closed form"}
    assert beyond(TOLERANCE, answers) == []


@pytest.mark.parametrize("machine", ["dragonfly_group", "dragonfly"])
def test_exact_steps_agree_exactly_where_routes_are_the_same(machine: str) -> None:
    # In the fat tree SimGrid gives each destination one spine; ours pools what goes up, as adaptive routing does.
    few = [
        case
        for case in cases.cases()
        if case.machine == machine
        and case.ranks <= (MOST_SCRAMBLED_EXACT if case.traffic == "scrambled" else MOST_EXACT)
    ]
    answers = [answer for case in few for answer in compare.answers(case, STORED[case.name], resolution=0.0)]
    assert len(few) == 45
    assert beyond(EXACTLY, answers) == []


@pytest.mark.parametrize("machine", list(cases.MACHINES))
def test_the_flat_exchange_of_256_ranks_is_solved_many_times_faster(machine: str) -> None:
    case = cases.Case(machine, 256, "flat", "hot_rank")
    (answer,) = compare.answers(case, STORED[case.name])
    assert answer.times_faster >= TIMES_FASTER


@pytest.mark.parametrize("algorithm", cases.ALGORITHMS)
@pytest.mark.parametrize("traffic", cases.TRAFFIC)
def test_both_mean_the_same_algorithms(algorithm: str, traffic: str) -> None:
    ranks, gpus = 16, 4
    matrix = cases.matrix(traffic, ranks)
    theirs = oracle.phases_of(algorithm, matrix, gpus)
    ours = schedule(algorithm, Job.even(ranks, gpus), np.array(matrix)).phases  # type: ignore[arg-type]
    assert [sorted(flows) for flows, _ in theirs] == [
        sorted(zip(phase.src.tolist(), phase.dst.tolist(), phase.bytes.tolist(), strict=True)) for phase in ours
    ]
    assert [tuple(needs) for _, needs in theirs] == [phase.after for phase in ours]


@pytest.mark.parametrize("traffic", cases.TRAFFIC)
@pytest.mark.parametrize("ranks", cases.RANKS)
def test_traffic_is_of_the_size_it_says(traffic: str, ranks: int) -> None:
    matrix = np.array(cases.matrix(traffic, ranks))
    assert matrix.shape == (ranks, ranks)
    assert matrix.min() >= 0
    if traffic == "scrambled":
        assert len(np.unique(matrix)) == 9
        assert not np.array_equal(matrix[0], matrix[1])
        return
    sent = matrix.sum(axis=1)
    busy = sent[1:] if traffic == "idle_rank" else sent
    assert np.all((busy <= ranks * cases.BYTES_PER_PEER) & (busy > ranks * cases.BYTES_PER_PEER - ranks))
    assert np.unique(matrix[-1]).size > (1 if traffic != "uniform" else 0)


def test_unknown_traffic_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown traffic 'bursts'; known: uniform"):
        cases.matrix("bursts", 4)


def test_a_case_that_changed_since_is_not_taken_for_answered(tmp_path: Path) -> None:
    text = json.loads(REFERENCE.read_text(encoding="utf-8"))
    text["cases"][0]["node"]["nic_bytes_s"] *= 2
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(text), encoding="utf-8")
    assert len(compare.stored_answers(changed)) == len(STORED) - 1


def test_simgrid_itself_still_gives_the_stored_answer() -> None:
    case = cases.Case("dragonfly", 16, "halo_v1", "zipf")
    try:
        found = subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"there is no {SYSTEM_PYTHON}")
    if found.returncode:
        pytest.skip(f"{SYSTEM_PYTHON} has no simgrid; apt-get install python3-simgrid")
    answer = compare.live_answer(SYSTEM_PYTHON, case)
    assert answer["seconds"] == pytest.approx(STORED[case.name]["seconds"], rel=1e-6)
    assert answer["flows"] == STORED[case.name]["flows"]


def test_the_script_lists_its_cases_without_simgrid(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["oracle", "--list"])
    assert oracle.main() == 0
    assert capsys.readouterr().out.split() == [case.name for case in cases.cases()]


def test_the_table_names_its_worst_answer() -> None:
    case = cases.Case("fat_tree", 16, "flat", "uniform")
    good = compare.Answer(case, "max-min", 1e-3, 1e-3, 2.0, 0.01)
    bad = compare.Answer(case, "closed form", 1e-3, 1.1e-3, 2.0, 0.001)
    *_, worst, least = compare.lines([good, bad])
    assert worst == "2 answers; largest error +10.00% (fat_tree/16/flat/uniform, closed form);"
    assert least == "least 200.0 times faster (fat_tree/16/flat/uniform, max-min)"
