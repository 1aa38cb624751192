"""Starts a group of ranks on this machine, watches it, and names the rank that fails."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.errors import LaunchError
from bench.launch.channel import Channel, ChannelClosedError, Message, channel_pair
from bench.launch.diagnosis import death_text, name_stalled, process_state, where
from bench.launch.site import site_to_dict
from bench.launch.stacks import dump_stacks
from bench.same_python import python_command
from bench.store.row import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.launch.lab import Lab
    from bench.measure.sampling import Sampling
    from bench.suite import Case, Site

POLL_S = 0.1
STOP_TIMEOUT_S = 5.0
STOP_POLL_S = 0.02
PAUSE_S = 1.0
"""Taking messages lasts POLL_S at most; much longer, and this process did not run."""
GRACE_S = 0.5
"""After the first sign of trouble: time for the other signs to arrive, so that the cause can be told from its
consequences (a dead rank also makes its peers raise)."""


LEAST_HEARTBEAT_S = 2.0
"""Workers beat twice a second; a busy machine delays some of them."""


@dataclass(frozen=True)
class Patience:
    """How long the supervisor waits before it calls a rank lost.

    Attributes:
        start_s: from the start of the processes until all have joined.
        heartbeat_s: silence of a rank's heartbeat thread.
        stall_s: no rank of the group made any progress in a case.
    """

    start_s: float = 120.0
    heartbeat_s: float = 15.0
    stall_s: float = 120.0

    @classmethod
    def from_timeout(cls, seconds: float) -> Patience:
        """A case may stall for so long; a silent heartbeat is judged no later, but never after too few beats."""
        return cls(heartbeat_s=max(LEAST_HEARTBEAT_S, min(cls.heartbeat_s, seconds)), stall_s=seconds)


@dataclass
class Failure:
    """Why a case gave no rows.

    Attributes:
        status: ``timeout`` if nothing moved any more, else ``failed``.
        reason: one line that names the rank.
        details: stacks and tracebacks by rank.
    """

    status: Literal["failed", "timeout"]
    reason: str
    details: dict[int, str] = field(default_factory=dict)


@dataclass
class Rank:
    """A worker process as its supervisor sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel
    log: Path
    last_seen: float
    phase: str = "start"
    iteration: int = 0
    ticks: int = 0
    ready: bool = False
    done: bool = False
    open: bool = True
    error: Message | None = None

    @property
    def position(self) -> str:
        return where(self.phase, self.iteration)

    def exit_code(self) -> int | None:
        """As ``Popen.poll``, but the process is not reaped: its id, and its group's, stays taken until ``kill``."""
        if self.process.returncode is not None:
            return self.process.returncode
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class RankProcesses:
    """A group of supervised worker processes, for use as a context manager.

    Args:
        sites: one a rank.
        environment: of every worker, beside what the group itself sets.
        lab: the emulated cluster that the ranks run in, or None.
        patience: when to give up.
        wrapped: the command of a rank, and what it is to be started as: below a profiler, say.
        stop_timeout_s: how long ranks that were asked to leave may take.
    """

    def __init__(
        self,
        sites: list[Site],
        patience: Patience,
        lab: Lab | None = None,
        environment: dict[str, str] | None = None,
        wrapped: Callable[[Site, list[str]], list[str]] | None = None,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._sites = sites
        self._patience = patience
        self._lab = lab
        self._wrapped = wrapped
        self._stop_timeout_s = stop_timeout_s
        self._environment = {**os.environ, **(environment or {})}
        self._ranks: list[Rank] = []
        self._rows: list[dict[str, Any]] = []
        self._selector = selectors.DefaultSelector()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._moved = 0.0
        self.failed_starts = 0
        """How many times in a row the group failed to start."""

    @property
    def running(self) -> bool:
        return bool(self._ranks)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty when the group does not run."""
        return [rank.process.pid for rank in self._ranks]

    def start(self) -> Failure | None:
        """Start all ranks and wait until they have joined; a failure ends them again."""
        self._folder = tempfile.TemporaryDirectory(prefix="bench-group-")
        folder = Path(self._folder.name)
        self._selector = selectors.DefaultSelector()
        try:
            for site in self._sites:
                self._ranks.append(self._spawn(site, folder))
        except OSError as error:
            self.kill()
            raise LaunchError(f"cannot start {len(self._sites)} ranks: {error}") from error
        for rank, site in zip(self._ranks, self._sites, strict=True):
            self._send(rank, {"site": site_to_dict(site), "rendezvous": str(folder / "rendezvous")})
        failure = self._wait("ready", self._patience.start_s)
        self.failed_starts = self.failed_starts + 1 if failure else 0
        return failure

    def lost_between_cases(self) -> str | None:
        """Which rank ended while nothing was asked of it, or None; the group must then be started again."""
        dead = [rank for rank in self._ranks if rank.exit_code() is not None]
        return "; ".join(f"rank {rank.rank} {death_text(rank.exit_code(), rank.log)}" for rank in dead) or None

    def run_case(self, suite: str, case: Case, sampling: Sampling) -> list[Row] | Failure:
        """Measure one case on all ranks. After a failure the group is gone; start it again."""
        records = self._do("case", suite, case, {"sampling": sampling.to_dict()})
        return records if isinstance(records, Failure) else [Row.from_dict(record) for record in records]

    def profile_case(
        self, suite: str, case: Case, sampling: Sampling, settings: Mapping[str, Any]
    ) -> list[dict[str, Any]] | Failure:
        """Profile one case on all ranks (``bench.profiling.in_rank``): what each rank says of it, as ``run_case``."""
        return self._do("profile", suite, case, {"sampling": sampling.to_dict(), "settings": dict(settings)})

    def compare_case(
        self, what: str, suite: str, case: Case, more: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | Failure:
        """Have all ranks answer one message of a comparison (``bench.comparison.in_rank``): rank 0's answer."""
        answers = self._do(what, suite, case, dict(more or {}), "setup" if what == "open" else "measure")
        return answers if isinstance(answers, Failure) else answers[0]

    def _do(
        self, what: str, suite: str, case: Case, more: Message, phase: str = "setup"
    ) -> list[dict[str, Any]] | Failure:
        for rank in self._ranks:
            rank.done, rank.phase = False, phase
            if phase == "setup":
                rank.iteration = 0
            self._send(rank, {"type": what, "suite": suite, "params": dict(case.params), **more})
        self._rows = []
        return self._wait("done", self._patience.stall_s) or self._rows

    def stop(self) -> None:
        """Ask all ranks to leave together; those that do not in time are killed."""
        for rank in self._ranks:
            self._send(rank, {"type": "stop"})
        deadline = time.monotonic() + self._stop_timeout_s
        while time.monotonic() < deadline and any(rank.exit_code() is None for rank in self._ranks):
            time.sleep(STOP_POLL_S)
        self.kill()

    def kill(self) -> None:
        """End every process of the group, children of ranks included, and reap them."""
        for rank in self._ranks:
            # Each rank leads a process group of its own, and is not reaped yet, so the id is surely its.
            if rank.process.returncode is None:
                os.killpg(rank.process.pid, signal.SIGKILL)
        for rank in self._ranks:
            rank.process.wait()
            rank.channel.close()
        self._ranks = []
        self._selector.close()
        if self._folder:
            self._folder.cleanup()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop() if kind is None else self.kill()

    def _spawn(self, site: Site, folder: Path) -> Rank:
        channel, theirs = channel_pair()
        argv = [*python_command(), "-m", "bench.launch.worker", str(theirs.fileno())]
        if self._wrapped:
            argv = self._wrapped(site, argv)
        environment = {**self._environment, **self._network(site), "LOCAL_RANK": str(site.local_rank)}
        if self._lab:
            argv = self._lab.node_command(site.node, argv)
        log = folder / f"rank{site.rank}.log"
        with theirs, log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._selector.register(channel, selectors.EVENT_READ, site.rank)
        return Rank(site.rank, process, channel, log, time.monotonic())

    def _network(self, site: Site) -> dict[str, str]:
        """The interface that gloo and NCCL talk over: the node's link in a lab, else loopback."""
        interface = self._lab.node_interface(site.node) if self._lab else "lo"
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if site.world > 1 else {}

    def _send(self, rank: Rank, message: Message) -> None:
        try:
            rank.channel.send(message)
        except ChannelClosedError:
            rank.open = False  # its process has ended; _wait says how

    def _wait(self, goal: Literal["ready", "done"], stall_s: float) -> Failure | None:
        """Take messages until every rank reached the goal, or something went wrong."""
        self._moved = time.monotonic()
        for rank in self._ranks:
            rank.last_seen = self._moved
        while not all(getattr(rank, goal) for rank in self._ranks):
            before = time.monotonic()
            self._take_messages()
            self._forgive_pause(time.monotonic() - before)
            failure = self._failure(goal, stall_s)
            if failure:
                self.kill()
                return failure
        return None

    def _forgive_pause(self, seconds: float) -> None:
        """A supervisor that was itself stopped (Ctrl-Z, a suspended job) must not charge its ranks with that time."""
        if seconds > PAUSE_S:
            self._moved += seconds
            for rank in self._ranks:
                rank.last_seen += seconds

    def _take_messages(self) -> None:
        for key, _ in self._selector.select(POLL_S):
            rank = self._ranks[key.data]
            try:
                messages = rank.channel.receive()
            except ChannelClosedError:
                rank.open = False
                self._selector.unregister(rank.channel)
                continue
            rank.last_seen = time.monotonic()
            for message in messages:
                self._take(rank, message)

    def _take(self, rank: Rank, message: Message) -> None:
        kind = message["type"]
        before = (rank.phase, rank.iteration, rank.ticks)
        if kind in ("heartbeat", "error"):
            rank.phase, rank.iteration, rank.ticks = message["phase"], message["iteration"], message["ticks"]
        if kind != "heartbeat" or before != (rank.phase, rank.iteration, rank.ticks):
            self._moved = rank.last_seen
        if kind == "ready":
            rank.ready = True
        elif kind == "error":
            rank.error = message
        elif kind == "done":
            rank.done = True
            self._rows = message["rows"] or self._rows

    def _failure(self, goal: str, stall_s: float) -> Failure | None:
        """What is wrong now, with the cause told from its consequences; None if all is well."""
        if any(not rank.open or rank.error or rank.exit_code() is not None for rank in self._ranks):
            until = time.monotonic() + GRACE_S
            while time.monotonic() < until:
                self._take_messages() if self._selector.get_map() else time.sleep(POLL_S)
            return self._cause(goal)
        now = time.monotonic()
        # Loading torch for the first time may keep a worker from beating, so a start has the start's patience.
        heartbeat_s = stall_s if goal == "ready" else self._patience.heartbeat_s
        silent = [rank for rank in self._ranks if now - rank.last_seen > heartbeat_s]
        if silent:
            names = ", ".join(f"rank {rank.rank} ({process_state(rank.process.pid)})" for rank in silent)
            return self._with_stacks(
                "timeout", f"{names} stopped answering for {heartbeat_s:g} s in {silent[0].position}"
            )
        if now - self._moved > stall_s:
            failure = self._with_stacks("timeout", "")
            failure.reason = (
                f"{name_stalled(self._positions(), failure.details)}: no rank made progress for {stall_s:g} s"
            )
            return failure
        return None

    def _cause(self, goal: str) -> Failure:
        dead = [rank for rank in self._ranks if rank.exit_code() is not None]
        if dead:
            texts = [f"rank {rank.rank} {death_text(rank.exit_code(), rank.log)}" for rank in dead]
            return self._with_stacks("failed", f"{'; '.join(texts)}; last seen in {dead[0].position}")
        raised = [rank for rank in self._ranks if rank.error]
        if raised:
            texts = [f"rank {rank.rank} raised {rank.error['error']}" for rank in raised if rank.error]
            return self._with_stacks("failed", f"{'; '.join(texts)} in {raised[0].position}")
        closed = ", ".join(str(rank.rank) for rank in self._ranks if not rank.open)
        return self._with_stacks("failed", f"rank {closed} closed its channel before it was {goal}")

    def _with_stacks(self, status: Literal["failed", "timeout"], reason: str) -> Failure:
        alive = {rank.rank: rank.process.pid for rank in self._ranks if rank.exit_code() is None}
        details = dump_stacks(alive)
        for rank in self._ranks:
            if rank.error:
                details[rank.rank] = f"{rank.error['traceback'].rstrip()}\n{details.get(rank.rank, '')}".rstrip()
            elif rank.rank not in details:
                details[rank.rank] = f"no stack: the process {death_text(rank.exit_code(), rank.log)}"
        return Failure(status, reason, details)

    def _positions(self) -> dict[int, tuple[str, int]]:
        return {rank.rank: (rank.phase, rank.iteration) for rank in self._ranks}
