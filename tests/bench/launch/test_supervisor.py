"""Groups of ranks that die, hang, stop and raise: each is named, and nothing is left behind."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.launch.site import local_site
from bench.launch.supervisor import Failure, Patience, RankProcesses
from bench.launch.worker import HEARTBEAT_INTERVAL_S
from bench.measure.sampling import Sampling
from bench.suite import Case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.store.row import Row

SUITE = "tests.faulty_suite:FaultySuite"
SAMPLING = Sampling(min_time_ns=20_000_000, max_time_ns=100_000_000, warmup_time_ns=1_000_000)
WORLD = 3


@pytest.fixture
def ranks() -> Iterator[RankProcesses]:
    sites = [local_site(rank, WORLD, "cpu", 0) for rank in range(WORLD)]
    with RankProcesses(sites, Patience(heartbeat_s=6, stall_s=6)) as group:
        assert group.start() is None
        yield group
    assert group.pids == []


def run(group: RankProcesses, fault: str, phase: str = "measure", victim: int = 1) -> list[Row] | Failure:
    params = {"ranks": WORLD, "number": 0, "fault": fault, "phase": phase, "victim": victim, "at": -1}
    return group.run_case(SUITE, Case(params), SAMPLING)


def failure(group: RankProcesses, fault: str, phase: str = "measure", victim: int = 1) -> Failure:
    """The failure of a case; also holds that every process of the group is gone, children of ranks included."""
    family = [psutil.Process(pid) for pid in group.pids]
    result = run(group, fault, phase, victim)
    assert isinstance(result, Failure)
    gone, alive = psutil.wait_procs(family, timeout=5)
    assert (len(gone), alive) == (WORLD, [])
    assert sorted(result.details) == list(range(WORLD))
    return result


def test_a_sound_group_measures_and_leaves(ranks: RankProcesses) -> None:
    for _ in range(2):
        rows = run(ranks, "none")
        assert isinstance(rows, list)
        (row,) = rows
        assert (row.status, row.wrong, row.unit) == ("ok", 0, "us")
        assert row.value == pytest.approx(statistics.median(row.samples))
        assert row.rank_min is not None
        assert row.rank_max is not None
        assert row.rank_min <= row.rank_max <= row.value * 1.001
        assert row.entry_skew is not None
        assert row.entry_skew > 0
        assert row.params["scope"] == "loopback"


@pytest.mark.parametrize(
    ("fault", "phase", "victim", "status", "words"),
    [
        ("kill", "measure", 1, "failed", "rank 1 was killed by SIGKILL"),
        ("kill", "setup", 0, "failed", "rank 0 was killed by SIGKILL"),
        ("stop", "measure", 2, "timeout", "rank 2 (stopped by a signal) stopped answering for 6 s"),
        ("exit0", "check", 1, "failed", "rank 1 exited early with status 0"),
        ("sys_exit", "measure", 0, "failed", "rank 0 exited early with status 0"),
        ("hang", "measure", 1, "timeout", "rank 1 hangs in iteration 3: no rank made progress for 6 s"),
        ("hang", "setup", 2, "timeout", "rank 2 hangs in phase 'setup'"),
        ("raise", "measure", 1, "failed", "rank 1 raised ValueError: boom over two lines in iteration 3"),
        ("raise", "check", 2, "failed", "rank 2 raised ValueError: boom over two lines in phase 'check'"),
    ],
)
def test_the_rank_that_fails_is_named(
    ranks: RankProcesses, fault: str, phase: str, victim: int, status: str, words: str
) -> None:
    found = failure(ranks, fault, phase, victim)
    assert found.status == status
    assert words in found.reason
    assert "\n" not in found.reason
    bystander = found.details[(victim + 1) % WORLD]
    assert "MainThread" in bystander
    if fault == "hang":
        assert "sleep" in found.details[victim] or "faulty_suite" in found.details[victim]
    if fault == "raise":
        assert "boom" in found.details[victim]


def test_children_of_a_dead_rank_end_with_it(tmp_path: Path) -> None:
    mark = {"BENCH_TEST_MARK": str(tmp_path)}
    sites = [local_site(rank, WORLD, "cpu", 0) for rank in range(WORLD)]
    with RankProcesses(sites, Patience(), environment=mark) as group:
        assert group.start() is None
        failure(group, "spawn_and_kill")
    deadline = time.monotonic() + 5
    while (left := [process.pid for process in psutil.process_iter() if _is_marked(process, mark)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert left == []


def _is_marked(process: psutil.Process, mark: dict[str, str]) -> bool:
    try:
        return mark.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_a_rank_that_ends_between_cases_is_noticed_before_the_next(ranks: RankProcesses) -> None:
    assert isinstance(run(ranks, "none"), list)
    assert ranks.lost_between_cases() is None
    process = psutil.Process(ranks.pids[2])
    process.kill()
    deadline = time.monotonic() + 5
    while (lost := ranks.lost_between_cases()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lost is not None
    assert lost.startswith("rank 2 was killed by SIGKILL")
    ranks.kill()


def test_the_group_starts_again_after_a_failure(ranks: RankProcesses) -> None:
    failure(ranks, "kill")
    assert not ranks.running
    assert ranks.start() is None
    assert isinstance(run(ranks, "none"), list)


def test_a_group_that_cannot_start_says_why() -> None:
    sites = [local_site(0, 1, "cpu", 0)]
    with RankProcesses(sites, Patience(), environment={"PYTHONHOME": "/nonexistent"}) as group:
        found = group.start()
        assert found is not None
        assert "rank 0 exited early with status 1, last words: " in found.reason
        assert (group.failed_starts, group.running) == (1, False)


def test_patience_is_never_longer_for_a_heartbeat_than_for_the_case() -> None:
    assert Patience.from_timeout(3).heartbeat_s == 3
    assert Patience.from_timeout(0.1).heartbeat_s >= 4 * HEARTBEAT_INTERVAL_S
    assert Patience.from_timeout(600).heartbeat_s == Patience().heartbeat_s
