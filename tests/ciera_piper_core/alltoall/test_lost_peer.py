"""A rank that dies within an exchange: every other rank gets an error in bounded time."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from bench.launch.connect import connect, file_store
from ciera_piper_core.alltoall import communicators, make_all_to_all
from ciera_piper_core.alltoall.communicators import Communicators
from ciera_piper_core.alltoall.placement import even_placement

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

FORK = multiprocessing.get_context("fork")
WORLD, DEAD, LIMIT_SECONDS = 6, 5, 20.0
"""Ranks 0 to 2 and 3 to 5 share a node. Rank 2 alone is on the dead rank's rail; the library's own limit is an hour."""


def die(*args: Any, **options: Any) -> None:
    os._exit(1)


def survive(rank: int, name: str, started: bool, way: str, store: str, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if way == "gloo":
        # Then nothing goes through pieces of memory, within nodes either.
        setattr(communicators, "connect_rail", lambda *_: None)  # noqa: B010
    group = connect(rank, WORLD, file_store(store, WORLD)).data
    assert group is not None
    algorithm = make_all_to_all(name, group, even_placement(WORLD, 3))
    send, out = torch.ones(WORLD, 4), torch.zeros(WORLD, 4)
    algorithm.exchange(send, None, None, out)
    if rank == DEAD:
        if name == "flat":
            dist.all_to_all_single = die
        start_pieces = Communicators.start_pieces

        def die_along_the_rail(self: Communicators, along: Any, *pieces: Any) -> Any:
            return die() if along == "rail" else start_pieces(self, along, *pieces)

        # Counts come first, through neither.
        for phase_2, death in (("start_pieces", die_along_the_rail), ("start_along_rail", die)):
            setattr(Communicators, phase_2, death)
    begin, message = time.monotonic(), ""
    try:
        # In two phases, phase 2 is the last: ranks on other rails still complete this exchange, but not the next.
        for _ in range(2 if name == "two_phase" else 1):
            if started:
                algorithm.start(send, [1] * WORLD, [1] * WORLD, out).wait()
            else:
                algorithm.exchange(send, None, None, out)
    except RuntimeError as error:
        message = str(error)
    seconds = time.monotonic() - begin
    with pytest.raises(RuntimeError, match="lost a peer in an earlier exchange"):
        algorithm.exchange(send, None, None, out)
    pipe.send((message, seconds))
    # Until all have answered, so that no error is owed to the end of a process.
    pipe.recv()
    os._exit(0)


@pytest.mark.parametrize("started", [False, True], ids=["exchange", "start"])
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("flat", "gloo"),
        ("halo_v1", "gloo"),
        *((name, "sockets") for name in ("two_phase", "halo_v0", "halo_v1", "halo_v2")),
    ],
)
def test_all_others_get_an_error(name: str, way: str, started: bool, tmp_path: Path) -> None:
    pipes, processes = [], []
    for rank in range(WORLD):
        ours, theirs = FORK.Pipe()
        process = FORK.Process(
            target=survive, args=(rank, name, started, way, str(tmp_path / "store"), theirs), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        pending = {pipe: rank for rank, pipe in enumerate(pipes) if rank != DEAD}
        deadline = time.monotonic() + LIMIT_SECONDS + 40
        while pending:
            ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            assert ready, f"rank(s) {sorted(pending.values())} still wait for rank {DEAD}"
            for pipe in ready:
                message, seconds = pipe.recv()  # type: ignore[union-attr]
                rank = pending.pop(pipe)  # type: ignore[call-overload]
                assert message, f"rank {rank} saw no error"
                assert seconds < LIMIT_SECONDS, f"rank {rank} waited {seconds:.0f} s"
    finally:
        for process in processes:
            process.kill()
            process.join()
