"""Runs a function on every rank of a small gloo world of forked processes, for the tests of code that communicates."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import torch

from bench.launch.connect import connect, disconnect, file_store
from bench.suite import Context, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

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
        process = FORK.Process(target=_rank_main, args=(site, body, str(store), theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    try:
        return _results(pipes, time.monotonic() + timeout_s)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()


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
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        group = connect(site.rank, site.world, file_store(store, site.world))
        result = body(Context(site, group))
        disconnect(group)
        pipe.send((None, result))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        # Peers may wait for this rank in a collective; leave without a goodbye.
        os._exit(1)
