"""Ranks that an outside launcher started watch each other through their rendezvous store.

Nobody supervises such ranks here: each tells the store twice a second that it lives and how far it
is, and rank 0 reads them all. When one is lost, rank 0 tells the others to leave their stacks and
end, stores the failure, and ends too, so that no rank hangs in a collective for ever.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from bench.errors import EXIT_NOT_MEASURED
from bench.launch.diagnosis import name_stalled, one_line
from bench.launch.stacks import dump_stack
from bench.launch.supervisor import Failure, Patience
from bench.store.owner import is_alive, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.distributed import Store

    from bench.measure.progress import Progress

BEAT_S = 0.5
STALE_S = 1.6
"""A heartbeat this old, once there is other evidence of trouble, means that its rank is dead."""
STALE_WHEN_SIGNALLED_S = 0.7
"""mpirun kills a second after it asked; what is to be stored must be stored by then."""
STACKS_WAIT_S = 3.0
LAST_CALL_S = 5.0
"""For a call of the store that is under way when the run is over; each takes milliseconds."""
ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


@dataclass
class Beat:
    """The last heartbeat of a rank, and when it last changed by this process's clock."""

    text: str = ""
    changed: float = 0.0
    moved: float = 0.0
    phase: str = "start"
    iteration: int = 0
    ticks: int = 0


class Watch:
    """The watching threads of one rank.

    Attributes:
        patience: may be set while it watches.

    Args:
        store: the ranks' rendezvous, for these threads alone.
        on_failure: called on rank 0 with the failure, or None if the launcher ended the run; it
            stores what it must. The process ends after it.
        signals: from ``divert_signals``.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        progress: Progress,
        on_failure: Callable[[Failure | None], None],
        signals: socket.socket,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._progress = progress
        self.patience = Patience()
        self._on_failure = on_failure
        self._signals = signals
        self._beats = [Beat(changed=time.monotonic(), moved=time.monotonic()) for _ in range(world)]
        self._over = threading.Event()
        self._signalled = threading.Event()
        self._wake = threading.Event()
        self._guarding = threading.Thread(target=self._guard, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._store.set(f"process/{self._rank}", json.dumps(this_process()))
        self._say_alive()
        self._guarding.start()
        threading.Thread(target=self._wait_for_signal, daemon=True).start()

    def stop(self) -> None:
        """The run ended well: a rank that leaves now is not lost."""
        self._over.set()
        self._wake.set()
        # Python ends threads where they wait for it, and one that comes out of the store's C++ then ends the process.
        self._guarding.join(LAST_CALL_S)

    def report(self, error: str, traceback: str) -> NoReturn:
        """This rank raised: tell rank 0, and wait to be ended."""
        self._store.set(f"raised/{self._rank}", json.dumps([error, traceback]))
        self._store.set("trouble", "1")
        while True:
            threading.Event().wait()

    def _wait_for_signal(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        self._signals.recv(1)
        if self._over.is_set():
            os._exit(EXIT_NOT_MEASURED)
        self._signalled.set()
        self._wake.set()
        self._store.set("trouble", "1")
        time.sleep(STALE_S + STACKS_WAIT_S + 2 * BEAT_S)
        os._exit(EXIT_NOT_MEASURED)

    def _guard(self) -> None:
        try:
            while not self._over.is_set():
                # A signal shortens the pause, and so does the end of the run.
                self._wake.wait(BEAT_S)
                self._wake.clear()
                if self._over.is_set():
                    return
                self._say_alive()
                if self._rank == 0:
                    self._look_around()
                elif self._store.check(["abort"]):
                    self._store.set(f"stack/{self._rank}", dump_stack(os.getpid()))
                    os._exit(EXIT_NOT_MEASURED)
                else:
                    self._look_at_rank_0()
        except Exception as error:
            if not self._over.is_set():
                self._leave(Failure("failed", f"rank {self._rank} lost the other ranks: {one_line(error)}"))

    def _look_at_rank_0(self) -> None:
        """Nobody else watches the watcher: a rank 0 that stands still would leave all others waiting."""
        self._read_beats([0])
        if self._silent(self.patience.heartbeat_s + STALE_S, [0]):
            self._leave(Failure("timeout", f"rank 0 stopped answering for {self.patience.heartbeat_s:g} s"))

    def _leave(self, failure: Failure) -> NoReturn:
        """End without the others' help."""
        print(f"bench: {failure.reason}", file=sys.stderr, flush=True)
        self._finish(failure)

    def _say_alive(self) -> None:
        progress = self._progress
        beat = [progress.phase, progress.iteration, progress.ticks, time.monotonic_ns()]
        self._store.set(f"beat/{self._rank}", json.dumps(beat))

    def _look_around(self) -> None:
        self._read_beats()
        now = time.monotonic()
        silent = self._silent(self.patience.heartbeat_s)
        if self._store.check(["trouble"]):
            gone = self._gone()
            if gone:
                self._end(self._cause(gone), gone)
            # A dead rank makes its peers raise, and its launcher end them: wait to tell cause from consequence.
            stale_s = STALE_WHEN_SIGNALLED_S if self._signalled.is_set() else STALE_S
            until = now + stale_s
            while time.monotonic() < until:
                time.sleep(BEAT_S / 5)
                self._say_alive()
                self._read_beats()
            self._end(self._cause(self._silent(stale_s)))
        elif silent:
            seconds = self.patience.heartbeat_s
            self._end(Failure("timeout", f"rank {_listed(silent)} stopped answering for {seconds:g} s"))
        elif now - max(beat.moved for beat in self._beats) > self.patience.stall_s:
            self._end(Failure("timeout", ""))

    def _read_beats(self, ranks: Iterable[int] | None = None) -> None:
        wanted = range(self._world) if ranks is None else ranks
        known = [rank for rank in wanted if self._beats[rank].text or self._store.check([f"beat/{rank}"])]
        now = time.monotonic()
        for rank, raw in zip(known, self._store.multi_get([f"beat/{rank}" for rank in known]), strict=True):
            beat, text = self._beats[rank], raw.decode()
            if text == beat.text:
                continue
            phase, iteration, ticks, _ = json.loads(text)
            if (phase, iteration, ticks) != (beat.phase, beat.iteration, beat.ticks):
                beat.moved = now
            beat.text, beat.changed = text, now
            beat.phase, beat.iteration, beat.ticks = phase, iteration, ticks

    def _silent(self, seconds: float, ranks: Iterable[int] | None = None) -> list[int]:
        now = time.monotonic()
        wanted = range(self._world) if ranks is None else ranks
        return [rank for rank in wanted if now - self._beats[rank].changed > seconds]

    def _gone(self) -> list[int]:
        """Ranks of this host whose process has ended: known at once, where a missing heartbeat takes its time."""
        started = [rank for rank in range(self._world) if self._store.check([f"process/{rank}"])]
        return [rank for rank in started if is_alive(json.loads(self._store.get(f"process/{rank}"))) is False]

    def _cause(self, silent: list[int]) -> Failure | None:
        """What made the trouble: a rank that died, else those that raised, else the launcher, which is no failure."""
        if silent:
            return Failure("failed", f"rank {_listed(silent)} died")
        keys = {rank: f"raised/{rank}" for rank in range(self._world) if self._store.check([f"raised/{rank}"])}
        raised = {rank: json.loads(self._store.get(key)) for rank, key in keys.items()}
        if raised:
            texts = [f"rank {rank} raised {error}" for rank, (error, _) in raised.items()]
            return Failure("failed", "; ".join(texts), {rank: traceback for rank, (_, traceback) in raised.items()})
        return None

    def _end(self, failure: Failure | None, gone: Sequence[int] = ()) -> None:
        """Collect the stacks of all ranks but those known to be gone, have the failure stored, and end this process.

        Once the launcher has asked this process to end, there is no time left for stacks.
        """
        self._store.set("abort", "1")
        stacks: dict[int, str] = {}
        if failure and not self._signalled.is_set():
            stacks[0] = dump_stack(os.getpid())
        awaited = [rank for rank in range(1, self._world) if rank not in gone]
        until = time.monotonic() + STACKS_WAIT_S
        while failure and awaited and time.monotonic() < until and not self._signalled.is_set():
            for rank in [rank for rank in awaited if self._store.check([f"stack/{rank}"])]:
                stacks[rank] = self._store.get(f"stack/{rank}").decode()
                awaited.remove(rank)
            time.sleep(BEAT_S / 5)
        if failure:
            for rank, stack in stacks.items():
                failure.details[rank] = f"{failure.details.get(rank, '')}\n{stack}".strip()
            if not failure.reason:
                positions = {rank: (beat.phase, beat.iteration) for rank, beat in enumerate(self._beats)}
                stalled = name_stalled(positions, failure.details)
                failure.reason = f"{stalled}: no rank made progress for {self.patience.stall_s:g} s"
        self._finish(failure)

    def _finish(self, failure: Failure | None) -> NoReturn:
        """Have the failure stored, where this rank keeps the store, and end this process."""
        try:
            self._on_failure(failure)
        except Exception as error:
            print(f"bench: {one_line(error)}", file=sys.stderr, flush=True)
        os._exit(EXIT_NOT_MEASURED)


def divert_signals() -> socket.socket:
    """Leave SIGTERM and SIGINT to a watching thread: the main one may hang in a collective. For the main thread.

    Blocking them is not enough: threads that libraries started before do not block them, and the
    kernel may choose any of these to end the process. So they have a handler, which tells the socket.

    Returns:
        a socket from which a byte can be read for each such signal.
    """
    signals, told = socket.socketpair()
    told.setblocking(False)
    for ending in ENDING_SIGNALS:
        signal.signal(ending, lambda *_: None)
    signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    return signals


def _listed(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
