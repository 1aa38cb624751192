"""Owners that die in every way, and what remains of their labs.

Where a test calls for the leftovers itself, it runs alone: any other run, too, removes what it finds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from bench.launch.lab import Lab, LabShape
from bench.launch.lab_holder import processes_in
from bench.launch.lab_leftovers import MARK_VARIABLE, end_marked, new_mark, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# An owner of a lab with one process on each node, and a forked child if asked for (else -1).
# It prints the ids of the child, the holder, the processes and their namespaces.
OWNER = """
import os, subprocess, sys, time
from bench.launch.lab import Lab, LabShape

with Lab(LabShape(nodes=2, ranks_per_node=1, rate_bits_per_s=10**8)) as lab:
    ranks = [subprocess.Popen(lab.node_command(node, ["sleep", "1000"])) for node in range(2)]
    for rank in ranks:
        while open(f"/proc/{rank.pid}/comm").read() != "sleep\\n":
            time.sleep(0.01)
    namespaces = [os.stat(f"/proc/{rank.pid}/ns/net").st_ino for rank in ranks]
    holder = next(part for part in lab.node_command(0, []) if part.startswith("--net=")).split("/")[2]
    child = os.fork() if "fork" in sys.argv else -1
    if child == 0:
        time.sleep(1000)
    print(child, holder, *(rank.pid for rank in ranks), *namespaces, flush=True)
    sys.stdin.read()
"""


class Owner:
    """A process that owns a lab."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.child, self.holder, *self.ranks, one, other = map(int, self.process.stdout.readline().split())
        self.namespaces = {one, other}

    def running(self) -> list[int]:
        """Processes that are left on the nodes or hold them."""
        return [process for process in [self.holder, *self.ranks] if _is_running(process)]

    def end(self) -> None:
        self.process.kill()
        for process in [self.child, self.holder, *self.ranks]:
            if process > 0 and _is_running(process):
                os.kill(process, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def make_owner() -> Iterator[Callable[..., Owner]]:
    owners: list[Owner] = []

    def make(*arguments: str) -> Owner:
        owners.append(Owner(*arguments))
        return owners[-1]

    yield make
    for owner in owners:
        owner.end()


@pytest.mark.lab
@pytest.mark.usefixtures("lab_available")
class TestOwnerEnds:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    def test_by_a_signal_and_the_lab_vanishes(self, make_owner: Callable[..., Owner], number: int) -> None:
        owner = make_owner()
        assert len(processes_in(owner.namespaces)) >= 2
        owner.process.send_signal(number)
        owner.process.wait(timeout=10)
        _wait_until(lambda: not owner.running() and not processes_in(owner.namespaces))

    def test_though_a_forked_child_keeps_its_descriptors(self, make_owner: Callable[..., Owner]) -> None:
        owner = make_owner("fork")
        owner.process.kill()
        owner.process.wait(timeout=10)
        _wait_until(lambda: not owner.running())
        assert _is_running(owner.child)

    @pytest.mark.alone
    def test_with_a_stopped_holder_and_the_next_run_removes_the_rest(self, make_owner: Callable[..., Owner]) -> None:
        owner = make_owner()
        os.kill(owner.holder, signal.SIGSTOP)
        owner.process.kill()
        owner.process.wait(timeout=10)
        assert len(owner.running()) == 3
        removed = [text for text in remove_leftovers() if f"process {owner.process.pid}," in text]
        assert len(removed) == 1
        assert all(str(process) in removed[0] for process in [owner.holder, *owner.ranks])
        assert owner.running() == []
        assert processes_in(owner.namespaces) == []

    @pytest.mark.alone
    def test_with_its_holder_and_the_next_run_ends_the_ranks(self, make_owner: Callable[..., Owner]) -> None:
        owner = make_owner()
        os.kill(owner.holder, signal.SIGKILL)
        owner.process.kill()
        owner.process.wait(timeout=10)
        assert any(f"process {owner.process.pid}," in text for text in remove_leftovers())
        assert owner.running() == []

    def test_not_and_its_lab_stays(self, make_owner: Callable[..., Owner]) -> None:
        owner = make_owner()
        with Lab(LabShape(nodes=1, ranks_per_node=1, rate_bits_per_s=10**9)) as mine:
            texts = remove_leftovers()
            assert not any(
                f"process {process}," in text for text in texts for process in (owner.process.pid, os.getpid())
            )
            assert len(owner.running()) == 3
            assert mine.node_command(0, ["true"])


class TestMarks:
    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda pid, start, space: f"{pid}:{start}:{space}:0", id="a living owner"),
            pytest.param(lambda pid, start, space: f"{pid}:{start - 1}:{space + 1}:0", id="another pid namespace"),
            pytest.param(lambda pid, start, space: "no mark of ours", id="another program's variable"),
        ],
    )
    def test_that_spare_a_process(self, change: Callable[[int, int, int], str]) -> None:
        with _marked(change(*_owner_of(new_mark()))) as process:
            remove_leftovers()
            assert process.poll() is None
            process.kill()

    @pytest.mark.alone
    def test_of_an_owner_whose_process_id_lives_on_in_another(self) -> None:
        pid, start, space = _owner_of(new_mark())
        with _marked(f"{pid}:{start - 1}:{space}:0") as process:
            texts = remove_leftovers()
            assert process.wait(timeout=5) == -signal.SIGKILL
        assert f"removed the lab of process {pid}, which is gone: ended its processes {process.pid}" in texts

    def test_of_two_labs_of_one_owner_differ(self) -> None:
        one, other = new_mark(), new_mark()
        with _marked(one) as process, _marked(other) as spared:
            assert end_marked(one) == [process.pid]
            assert end_marked(one) == []
            assert spared.poll() is None
            spared.kill()


def _owner_of(mark: str) -> tuple[int, int, int]:
    pid, start, space, _ = map(int, mark.split(":"))
    return pid, start, space


def _marked(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK_VARIABLE: mark})


def _is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
