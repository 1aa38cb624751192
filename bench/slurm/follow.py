"""Follows a job to its end: shows its states and its log, and cancels it when the user says so."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.errors import LaunchError
from bench.slurm.client import JobState, cancel, look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from bench.slurm.folder import Job

FIRST_LOOK_S, LAST_LOOK_S, LOOK_GROWTH = 0.5, 20.0, 1.3
"""Between two questions to the controller, which other users need too; a change of state begins anew."""
LOG_S = 0.3
"""Between two looks into the log, which is a file and costs the controller nothing."""
SILENCE_S = 900.0
"""For so long a controller may be away; they are restarted now and then, and jobs go on meanwhile."""


class LogTail:
    """What is new in a file that others write, and that may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = ""

    def lines(self, to_the_end: bool = False) -> list[str]:
        """Whole lines since the last call, and with ``to_the_end`` a line that nobody has ended."""
        try:
            # Opened anew each time: network file systems show what others wrote when a file is opened.
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            data = b""
        self._offset += len(data)
        *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        if to_the_end and self._rest:
            whole.append(self._rest)
            self._rest = ""
        return [printable(line) for line in whole]


def printable(text: str) -> str:
    """Text that cannot drive a terminal: control characters, escapes among them, are shown by their code."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text.rstrip("\r"))


class Detached(Exception):
    """The user leaves a job that goes on; no error."""


class _Terminated(KeyboardInterrupt):
    """SIGTERM: whoever sends it does not answer questions."""


def follow(job: Job, say: Callable[[str], None], *, cancelled: bool = False) -> JobState:
    """Wait until the job has ended; returns its last state.

    Ctrl-C asks whether to cancel it; SIGTERM, or Ctrl-C where nobody can be asked, cancels it at once.
    The job's rows stay in every case.

    Args:
        say: gets each line for the user.
        cancelled: it was cancelled before, so there is nothing to ask.

    Raises:
        Detached: the user leaves it running.
        LaunchError: Slurm has not answered for a long time.
    """
    watch = _Watch(job, say)
    with _ending_signals():
        while not cancelled:
            try:
                return watch.to_the_end()
            except KeyboardInterrupt as interruption:
                cancelled = isinstance(interruption, _Terminated) or _wants_to_cancel(job)
        try:
            cancel(job)
            say(f"job {job.number}: cancelled; waiting until it has ended (Ctrl-C waits no longer)")
            return watch.to_the_end()
        except KeyboardInterrupt:
            raise Detached from None


class _Watch:
    """What was shown of a job, so that it can be watched on after an interruption."""

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        self._job, self._say = job, say
        self._log = LogTail(job.log)
        self._shown = ""

    def to_the_end(self) -> JobState:
        pause, answered, exit_code = FIRST_LOOK_S, time.monotonic(), self._job.noted_exit_code()
        silent = False
        while True:
            try:
                state = look(self._job)
            except LaunchError as error:
                if not silent:
                    self._say(f"job {self._job.number}: {error}; asking again")
                silent = True
                if time.monotonic() - answered > SILENCE_S:
                    raise
            else:
                answered, silent = time.monotonic(), False
                if self._show(state):
                    pause = FIRST_LOOK_S
                if state.ended:
                    self._show_log(to_the_end=True)
                    return state
            until = time.monotonic() + pause
            while time.monotonic() < until:
                time.sleep(LOG_S)
                self._show_log()
                noted = self._job.noted_exit_code()
                if noted != exit_code:
                    # The ranks have ended, so the job soon will.
                    exit_code, pause = noted, FIRST_LOOK_S / LOOK_GROWTH
                    break
            pause = min(pause * LOOK_GROWTH, LAST_LOOK_S)

    def _show(self, state: JobState) -> bool:
        """Say the state if it is another one than before."""
        text = describe(state)
        if text == self._shown:
            return False
        # What the log holds by now comes before the end that it explains.
        self._show_log()
        self._say(f"job {self._job.number}: {text}")
        self._shown = text
        return True

    def _show_log(self, to_the_end: bool = False) -> None:
        for line in self._log.lines(to_the_end):
            self._say(line)


def describe(state: JobState) -> str:
    """A state in a few words: ``PENDING (Resources)``, ``RUNNING on n[1-2]``."""
    text = state.state
    if state.nodes and not state.ended:
        text += f" on {state.nodes}"
    if state.reason and not state.ended:
        text += f" ({state.reason})"
    if state.restarts:
        text += f", restart {state.restarts}"
    return text


def _wants_to_cancel(job: Job) -> bool:
    """Ask, where there is somebody to ask.

    Raises:
        Detached: asked again by Ctrl-C, or nobody is there any more.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(
        f"\ncancel job {job.number}? y cancels it, n goes on following, Ctrl-C leaves it running: ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise Detached from None


@contextmanager
def _ending_signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt. A lost terminal ends this process alone; the job goes on."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt

    # SIGINT too: whoever starts this in a shell's background has it ignored.
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
