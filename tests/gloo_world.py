"""Runs a function on every rank of a small gloo world of forked processes, for the tests of code that communicates."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import torch

from bench.launch.connect import connect, disconnect, file_store
from bench.launch.diagnosis import one_line
from bench.suite import Context, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess
    from pathlib import Path

    from bench.measure.group import RankGroup

# Forked children need no import of torch, and their bodies may be closures. They stay away from the
# thread pool that a fork does not copy, by computing on one thread.
FORK = multiprocessing.get_context("fork")


def run_world(
    world: int,
    body: Callable[[Context], Any],
    folder: Path,
    sites: Sequence[Site] | None = None,
    timeout_s: float = 60,
) -> list[Any]:
    """What ``body`` returned on each rank.

    Args:
        body: called with the rank's context; its result must be picklable.
        folder: for the rendezvous; one world at a time.
        sites: of the ranks; all on this host by default.

    Raises:
        AssertionError: a rank raised, died or did not end in time; the message names it.
    """
    processes, pipes = _start(world, _rank_main, body, folder, sites)
    try:
        return _results(pipes, time.monotonic() + timeout_s)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()


@dataclass(frozen=True)
class Ending:
    """How a rank ended by itself.

    Attributes:
        result: what the body returned. error: what it raised, as rows tell it; empty if nothing.
        killed: by SIGKILL.
    """

    result: Any = None
    error: str = ""
    killed: bool = False


def endings_of_world(
    world: int,
    body: Callable[[Context], Any],
    folder: Path,
    timeout_s: float = 60,
    together_s: float = 30,
) -> list[Ending]:
    """As ``run_world``, but a rank that fails disturbs no other: each is waited for until its process has ended.

    Args:
        timeout_s: until the first has ended. together_s: from then on, until all have.

    Raises:
        AssertionError: a rank did not end in time; the message names it.
    """
    processes, pipes = _start(world, _lone_rank_main, body, folder)
    said: dict[int, tuple[str | None, Any]] = {}
    deadline = time.monotonic() + timeout_s
    try:
        while len(said) < world and (left := deadline - time.monotonic()) > 0:
            for pipe in wait([pipe for rank, pipe in enumerate(pipes) if rank not in said], timeout=left):
                if not said:
                    deadline = time.monotonic() + together_s
                # Taken out at once: a process that has more to say than a pipe holds would not end.
                with suppress(EOFError):
                    said[pipes.index(pipe)] = (None, None)
                    said[pipes.index(pipe)] = pipe.recv()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        assert not late, f"rank(s) {late} did not end in time; others said {said}"
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [
        Ending(said[rank][1], said[rank][0] or "", process.exitcode == -signal.SIGKILL)
        for rank, process in enumerate(processes)
    ]


def _start(
    world: int,
    main: Callable[..., None],
    body: Callable[[Context], Any],
    folder: Path,
    sites: Sequence[Site] | None = None,
) -> tuple[list[ForkProcess], list[Connection]]:
    """A process a rank, and what each sends through."""
    if sites is None:
        sites = [
            Site(rank=rank, world=world, local_rank=rank, ranks_per_node=world, scope="loopback")
            for rank in range(world)
        ]
    store = folder / "rendezvous"
    store.unlink(missing_ok=True)
    processes, pipes = [], []
    for site in sites:
        ours, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=main, args=(site, body, str(store), theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    return processes, pipes


def _results(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        late = [rank for rank in range(len(pipes)) if rank not in results]
        assert ready, f"rank(s) {late} did not end in time"
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                error, results[rank] = pipe.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} died") from None
            assert error is None, f"rank {rank} raised:\n{error}"
    return [results[rank] for rank in range(len(pipes))]


def _rank_main(site: Site, body: Callable[[Context], Any], store: str, pipe: Connection) -> None:
    try:
        group = _join(site, store)
        result = body(Context(site, group))
        disconnect(group)
        pipe.send((None, result))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        # Peers may wait for this rank in a collective; leave without a goodbye.
        os._exit(1)


def _lone_rank_main(site: Site, body: Callable[[Context], Any], store: str, pipe: Connection) -> None:
    """Ends as a user's program does: whatever it raised, threads that were left running keep the process alive."""
    try:
        pipe.send((None, body(Context(site, _join(site, store)))))
    except BaseException as error:
        pipe.send((one_line(error), None))


def _join(site: Site, store: str) -> RankGroup:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    return connect(site.rank, site.world, file_store(store, site.world) if site.world > 1 else None)
