"""Compressed gathers that fail: on one rank or on all, before and after the collective; nothing wrong comes out."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from bench.launch.connect import file_store
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.errors import GatherError, GatherMismatchError
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.payload import HEADER_BYTES, PayloadHeader
from tests.ciera_piper_core.allgather.walks import Walk, assert_same_bits
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from bench.suite import Context
    from ciera_piper_core.allgather.exchange import Transfer
    from ciera_piper_core.allgather.stage import Stage
    from ciera_piper_core.exponents.segments import Received

WORLD = 3
SIZES = [("a", 3000), ("b", 900)]


class Rehearsal:
    """A gather that has committed a few times, with the walk that it follows."""

    def __init__(self, context: Context, mode: str = "auto", dtype: torch.dtype = torch.bfloat16) -> None:
        self.rank = context.group.rank
        settings = CodingSettings(mode, 128)  # type: ignore[arg-type]
        self.gather = CompressedGather(GatherPlan.from_sizes(SIZES, dtype, settings, "layer"))
        self.walk = Walk(self.gather.shard_values, dtype)
        for _ in range(3):
            self.step()

    @property
    def stage(self) -> Stage:
        """The only one, of so small a shard."""
        (stage,) = self.gather._stages
        return stage

    def step(self, started: bool = False) -> None:
        """One gather that must succeed."""
        self.walk.step()
        self.again(started)

    def again(self, started: bool = False) -> None:
        """A gather of the same values."""
        shard = self.walk.shard(self.rank)
        out = self.gather.start(shard).wait_for_output() if started else self.gather.gather(shard)
        assert_same_bits(out, self.walk.whole())

    @property
    def kinds(self) -> tuple[int, int]:
        """Coded gathers, refreshes."""
        return self.gather.statistics.gathers["coded"], self.gather.statistics.gathers["refresh"]


class BrokenError(Exception):
    """What the tests raise."""


def failing_once(owner: Any, name: str, *, after: bool = False) -> None:
    """Have the next call of a method raise, before or after it did its work."""
    inner = getattr(owner, name)

    def fail(*arguments: Any, **named: Any) -> None:
        setattr(owner, name, inner)
        if after:
            inner(*arguments, **named)
        raise BrokenError(name)

    setattr(owner, name, fail)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("ranks", [(1,), (0, 1, 2)])
def test_a_shard_that_cannot_be_coded_is_gathered_plain(ranks: tuple[int, ...], started: bool, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context)
        before = rehearsal.kinds
        if rehearsal.rank in ranks:
            failing_once(rehearsal.stage.encoder, "encode", after=True)
            rehearsal.walk.step()
            with pytest.warns(RuntimeWarning, match=r"rank \d could not code its shard \(BrokenError"):
                rehearsal.again(started)
            assert rehearsal.gather.statistics.failed_encodes == 1
        else:
            rehearsal.step(started)
        assert rehearsal.kinds == (before[0], before[1] + 1)
        rehearsal.step()
        assert rehearsal.kinds == (before[0] + 1, before[1] + 1)

    run_world(WORLD, body, tmp_path)


@pytest.mark.parametrize(("mode", "started"), [("block", False), ("delta", True)])
@pytest.mark.parametrize("ranks", [(2,), (0, 1, 2)])
@pytest.mark.parametrize("where", ["decode", "commit"])
def test_a_failure_after_the_collective_is_mended_by_the_next_gather(
    where: str, ranks: tuple[int, ...], mode: str, started: bool, tmp_path: Path
) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context, mode)
        gather, rank = rehearsal.gather, rehearsal.rank
        before = rehearsal.kinds
        rehearsal.walk.step()
        if rank in ranks:
            # The last of several, so that the others have advanced already.
            last = list(rehearsal.stage.decoders.values())[-1]
            failing_once(last if where == "decode" else rehearsal.stage.encoder, where, after=where == "commit")
            with pytest.raises(BrokenError):
                rehearsal.again(started)
            assert gather.statistics.failed == 1
        else:
            rehearsal.again(started)
        # The step is repeated on all ranks, as a training script would.
        rehearsal.again(started)
        assert rehearsal.kinds[1] == before[1] + 1
        for _ in range(3):
            rehearsal.step(started)
        assert rehearsal.kinds[1] == before[1] + 1

    run_world(WORLD, body, tmp_path)


@pytest.mark.parametrize("second", ["none", "overflow", "refresh"])
def test_a_rank_that_is_interrupted_after_a_collective_still_joins_the_second_one(second: str, tmp_path: Path) -> None:
    """Or the others would take its next gather for it."""

    def body(context: Context) -> None:
        rehearsal = Rehearsal(context, "block")
        gather, rank = rehearsal.gather, rehearsal.rank
        rehearsal.again()
        if second == "overflow":
            # Nothing changed for long, so that there is no room for what comes now.
            for _ in range(100):
                rehearsal.again()
            rehearsal.walk = Walk(gather.shard_values, torch.bfloat16, seed=5)
        if second == "refresh" and rank == 0:
            gather.reset()
        overflows = gather.statistics.overflows
        if rank == 1:

            def interrupted(out: torch.Tensor, part: torch.Tensor) -> None:
                del gather.lane.start_all_gather
                gather.lane.all_gather_now(out, part)
                raise KeyboardInterrupt

            gather.lane.start_all_gather = interrupted  # type: ignore[method-assign,assignment]
            with pytest.raises(KeyboardInterrupt):
                rehearsal.again()
        else:
            rehearsal.again()
            assert gather.statistics.overflows == overflows + (second == "overflow")
        for _ in range(3):
            rehearsal.step()
        assert gather.statistics.gathers["refresh"] >= 2

    run_world(WORLD, body, tmp_path)


def test_a_rank_that_fails_before_it_takes_part_is_waited_for(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context)
        before = rehearsal.kinds
        if rehearsal.rank == 0:
            failing_once(rehearsal.stage.exchange, "place_payload_in_place")
            with pytest.raises(BrokenError):
                rehearsal.again()
            time.sleep(0.1)
        rehearsal.again()
        rehearsal.step()
        assert rehearsal.kinds == (before[0] + 1, before[1] + 1)

    run_world(WORLD, body, tmp_path)


@pytest.mark.parametrize("ranks", [(1,), (0, 1, 2)])
def test_a_reset_on_any_rank_refreshes_all(ranks: tuple[int, ...], tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context)
        before = rehearsal.kinds
        # As after loading a checkpoint: values that no walk leads to.
        rehearsal.walk = Walk(rehearsal.gather.shard_values, torch.bfloat16, seed=77)
        if rehearsal.rank in ranks:
            rehearsal.gather.reset()
        rehearsal.again()
        assert rehearsal.kinds == (before[0], before[1] + 1)
        rehearsal.step()
        assert rehearsal.kinds == (before[0] + 1, before[1] + 1)

    run_world(WORLD, body, tmp_path)


def test_a_reset_while_a_gather_is_in_flight_ends_it_first(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context)
        rehearsal.walk.step()
        work = rehearsal.gather.start(rehearsal.walk.shard(rehearsal.rank))
        rehearsal.gather.reset()
        assert_same_bits(work.wait_for_output(), rehearsal.walk.whole())
        refreshes = rehearsal.kinds[1]
        rehearsal.step()
        assert rehearsal.kinds[1] == refreshes + 1

    run_world(WORLD, body, tmp_path)


@pytest.mark.parametrize("part", ["records", "bitmap", "rest", "variable"])
def test_what_was_changed_on_the_way_is_found_and_the_next_gather_mends_it(part: str, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context, "delta")
        exchange = rehearsal.stage.exchange
        inner = exchange.received
        shape = rehearsal.stage.agreement.shapes[0]
        places = {
            "records": HEADER_BYTES + 40,
            "bitmap": shape.coded[0].fixed_offset + 1,
            "rest": shape.coded[1].fixed_offset + shape.coded[1].area.rest_offset + 400,
            "variable": shape.fixed_bytes + 9,
        }

        def corrupted(transfer: Transfer, rank: int) -> Received:
            received = inner(transfer, rank)
            if rank == 0:
                received.first[places[part]] ^= 16
            return received

        rehearsal.walk.step()
        if rehearsal.rank == 2:
            exchange.received = corrupted  # type: ignore[method-assign]
            with pytest.raises(CodedDataError, match="from rank 0"):
                rehearsal.again()
            exchange.received = inner  # type: ignore[method-assign]
        else:
            rehearsal.again()
        for _ in range(2):
            rehearsal.step()

    run_world(WORLD, body, tmp_path)


@pytest.mark.parametrize("field", ["variable_bytes", "capacity_bytes"])
def test_a_header_with_sizes_that_cannot_be_is_refused_on_every_rank(field: str, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context)
        exchange = rehearsal.stage.exchange
        inner = exchange._header

        def impossible(transfer: Transfer, first: int) -> PayloadHeader:
            return replace(inner(transfer, first), **{field: 1 << 50})

        if rehearsal.rank == 1:
            exchange._header = impossible  # type: ignore[method-assign]
        with pytest.raises(GatherError, match=r"from rank 1: .*1125899906842624"):
            rehearsal.again()

    run_world(WORLD, body, tmp_path)


def test_gathers_in_another_order_are_an_error_on_every_rank(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        lane = GatherLane()
        gathers = [
            CompressedGather(GatherPlan.single(500, torch.bfloat16, name=name), lane=lane)
            for name in ("first", "second")
        ]
        shard = torch.full((500,), float(rank), dtype=torch.bfloat16)
        for gather in gathers:
            gather.gather(shard)
        with pytest.raises(GatherMismatchError, match=r"the plan \(its digest\): rank 0, 2: [0-9a-f]+; rank 1: "):
            gathers[rank == 1].gather(shard)
        # Whoever goes on gets an error too, since nobody knows who is where.
        with pytest.raises(GatherError, match="build them anew"):
            gathers[0].gather(shard)
        with pytest.raises(GatherError, match="build them anew"):
            gathers[1].start(shard)

    run_world(WORLD, body, tmp_path)


def test_a_closed_gather_says_so(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rehearsal = Rehearsal(context)
        rehearsal.gather.close()
        with pytest.raises(GatherError, match="closed"):
            rehearsal.again()

    run_world(2, body, tmp_path)


def _doomed(rank: int, folder: str, kill: Callable[[int, CompressedGather], None], staged: bool) -> None:
    """A rank of a world in which one dies; writes what it met into a file of its own."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = file_store(f"{folder}/rendezvous", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=20))
    gather = CompressedGather(GatherPlan.single(400_000, torch.bfloat16), staged=staged)
    walk = Walk(gather.shard_values, torch.bfloat16)
    for step in range(20):
        walk.step()
        if step == 3:
            kill(rank, gather)
        out = torch.empty(gather.output_values, dtype=torch.bfloat16)
        began = time.monotonic()
        try:
            gather.gather(walk.shard(rank), out)
        except GatherError as error:
            elapsed = time.monotonic() - began
            try:
                gather.gather(walk.shard(rank), out)
            except GatherError as later:
                with open(f"{folder}/met_{rank}", "w") as file:
                    file.write(f"{elapsed}\n{error}\n{later}")
            os._exit(0)
        assert_same_bits(out, walk.whole())
    os._exit(3)


def killed_amid_the_collective(rank: int, gather: CompressedGather) -> None:
    """Dies once its header has gone out: the others are in the collective."""
    if rank == 1:
        inner = gather.lane.start_all_gather

        def die(out: torch.Tensor, part: torch.Tensor) -> dist.Work | None:
            work = inner(out, part)
            os.kill(os.getpid(), signal.SIGKILL)
            return work

        gather.lane.start_all_gather = die  # type: ignore[method-assign]


def killed_while_coding(rank: int, gather: CompressedGather) -> None:
    """Dies while the others wait for it."""
    if rank == 1:
        gather._stages[-1].encoder.encode = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]


def killed_between_the_collectives(rank: int, gather: CompressedGather) -> None:
    """Dies where the others wait for the second collective."""
    gather.reset()
    if rank == 1:
        gather._stages[0].exchange.follow = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("kill", [killed_amid_the_collective, killed_while_coding, killed_between_the_collectives])
def test_a_killed_rank_is_an_error_on_the_others_in_bounded_time(
    kill: Callable[[int, CompressedGather], None], staged: bool, tmp_path: Path
) -> None:
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_doomed, args=(rank, str(tmp_path), kill, staged)) for rank in range(WORLD)]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(40)
        assert [process.exitcode for process in ranks] == [0, -signal.SIGKILL, 0]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    for rank in (0, 2):
        elapsed, error, later = (tmp_path / f"met_{rank}").read_text().split("\n", 2)
        assert float(elapsed) < 25
        assert "a rank may have died" in error
        assert "build them anew" in later


@pytest.fixture(autouse=True)
def _quick_exit() -> Iterator[None]:
    """Nothing of one test may be left for the next."""
    yield
    assert not [child for child in multiprocessing.active_children() if child.is_alive()]
