"""Gathers under FSDP2 that do not complete: tried again, on one rank or all; ranks killed in the middle."""

from __future__ import annotations

import os
import signal
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard

from bench.launch.connect import connect, file_store
from bench.suite import Context, Site
from ciera_piper_core.allgather.errors import GatherError
from ciera_piper_core.allgather.exchange import Exchange
from ciera_piper_core.allgather.fsdp import compress_all_gathers
from ciera_piper_core.allgather.shard_coding import ShardDecoder, ShardEncoder
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.segment import CodingSettings
from tests.ciera_piper_core.allgather.fsdp_training import (
    Compressed,
    Recipe,
    Training,
    batch,
    cpu_mesh,
    differing,
    failing,
    same_bits,
)
from tests.gloo_world import FORK, run_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BF16 = Recipe(torch.bfloat16)


def train_alike(plain: Training, compressed: Training, rank: int, first: int, steps: int = 2) -> None:
    """Train both, and compare every bit."""
    for step in range(first, first + steps):
        batches = [batch(step, rank)]
        expected, got = plain.step(batches), compressed.step(batches)
        assert all(map(same_bits, got, expected)), f"step {step}"
        assert differing(plain, compressed) == [], f"step {step}"


@pytest.mark.parametrize("reshard", [True, False])
def test_decoding_that_fails_on_all_ranks_is_tried_again(reshard: bool, tmp_path: Path) -> None:
    """In every gather of a step, by turns."""

    def body(context: Context) -> None:
        recipe = Recipe(torch.bfloat16, reshard=reshard)
        plain, compressed = Training(recipe, cpu_mesh(2)), Compressed(recipe, cpu_mesh(2))
        rank = context.group.rank
        train_alike(plain, compressed, rank, first=0, steps=2)
        with failing(ShardDecoder, "decode", at=0) as calls:
            train_alike(plain, compressed, rank, first=2, steps=1)
        gathers = 6 if reshard else 3
        for number in range(gathers):
            step = 3 + 2 * number
            at = 1 + number * (calls[0] - 1) // (gathers - 1)
            with failing(ShardDecoder, "decode", at), pytest.raises(CodedDataError, match="on purpose"):
                compressed.step([batch(step, rank)])
            compressed.abandon()
            assert differing(plain, compressed) == [], "a step that fails changes nothing"
            train_alike(plain, compressed, rank, first=step)
        assert sum(one.failed for handle in compressed.handles for one in handle.statistics.values()) == gathers
        compressed.remove()

    run_world(2, body, tmp_path)


def test_a_gather_that_fails_on_one_rank_is_tried_again_with_the_others(tmp_path: Path) -> None:
    """The last of an evaluation: in the middle of one, the others would wait for this rank in the next gather."""

    def body(context: Context) -> None:
        plain, compressed = Training(BF16, cpu_mesh(3)), Compressed(BF16, cpu_mesh(3))
        rank = context.group.rank
        train_alike(plain, compressed, rank, first=0)
        tokens = batch(2, rank)[0]
        with torch.no_grad():
            expected = plain.model(tokens)
            with failing(ShardDecoder, "decode", at=0) as calls:
                assert same_bits(compressed.model(tokens).float(), expected.float())
            for training in (plain, compressed):
                training.root.reset_iter_state()
            refreshed = compressed.gathers("refresh")
            if rank == 1:
                with failing(ShardDecoder, "decode", calls[0]), pytest.raises(CodedDataError, match="on purpose"):
                    compressed.model(tokens)
            else:
                assert same_bits(compressed.model(tokens).float(), expected.float())
        compressed.root.reset_iter_state()
        train_alike(plain, compressed, rank, first=3)
        assert compressed.gathers("refresh") == refreshed + 1, "the failed group alone begins anew, on all ranks"
        compressed.remove()

    run_world(3, body, tmp_path)


def test_coding_that_fails_on_one_rank_makes_the_gather_a_plain_one(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed = Training(BF16, cpu_mesh(2)), Compressed(BF16, cpu_mesh(2))
        rank = context.group.rank
        train_alike(plain, compressed, rank, first=0)
        refreshed = compressed.gathers("refresh")
        with failing(ShardEncoder, "encode", at=int(rank == 1)):
            train_alike(plain, compressed, rank, first=2)
        assert compressed.gathers("refresh") == refreshed + 1
        compressed.remove()

    run_world(2, body, tmp_path)


def test_a_failed_gather_is_not_taken_for_a_pending_one(tmp_path: Path) -> None:
    """Without ``reset_iter_state``: FSDP2 would wait for it again, and hand out what it had filled by then."""

    def body(context: Context) -> None:
        model = torch.nn.Linear(64, 64, bias=False)
        whole = model.weight.detach().clone().copy_(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
        model.weight.data.copy_(whole)
        fully_shard(model, mesh=cpu_mesh(2))
        handle = compress_all_gathers(model, CodingSettings("delta", 64))
        for at in (0, 0, 1, 0, 1):
            with failing(ShardDecoder, "decode", at):
                if at:
                    with pytest.raises(CodedDataError, match="on purpose"):
                        model.unshard()
                model.unshard()
            assert torch.equal(model.weight.detach().view(torch.int32), whole.view(torch.int32))
            model.reshard()
        assert handle.statistics["root"].gathers["refresh"] == 3
        handle.remove()

    run_world(2, body, tmp_path)


def survivors(world: int, victim: int, body: Callable[[Context], Any], folder: Path, timeout_s: float) -> list[Any]:
    """What ``body`` returned on the ranks that are not killed or stopped, within the time."""
    processes, pipes = [], []
    for rank in range(world):
        ours, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_survive, args=(rank, world, body, str(folder / "store"), theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    deadline = time.monotonic() + timeout_s
    try:
        results = []
        for rank, pipe in enumerate(pipes):
            if rank == victim:
                continue
            assert pipe.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} got no error in time"
            error, result = pipe.recv()
            assert error is None, f"rank {rank} raised:\n{error}"
            results.append(result)
        return results
    finally:
        for process in processes:
            process.kill()
            process.join()


def _survive(rank: int, world: int, body: Callable[[Context], Any], store: str, pipe: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        group = connect(rank, world, file_store(store, world))
        site = Site(rank=rank, world=world, local_rank=rank, ranks_per_node=world, scope="loopback")
        pipe.send((None, body(Context(site, group))))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
    # Without the others there is no orderly goodbye.
    os._exit(0)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_dies_or_hangs_inside_a_gather(place: str, signal_: signal.Signals, tmp_path: Path) -> None:
    """The others get an error in bounded time, and their parameters are what they were before the step."""
    world, victim, patience_s = 3, 1, 4

    def body(context: Context) -> tuple[float, str, str]:
        rank = context.group.rank
        training = Training(BF16, cpu_mesh(world))
        compress_all_gathers(training.model, CodingSettings("auto", 64), timeout=timedelta(seconds=patience_s))
        for step in range(3):
            training.step([batch(step, rank)])
        before = {name: shard.clone() for name, shard in training.shards()}
        real = Exchange._first
        calls = [0]

        def dying(self: Exchange, *args: Any) -> Any:
            calls[0] += 1
            now = calls[0] == 3 and rank == victim
            if now and place == "before":
                os.kill(os.getpid(), signal_)
            result = real(self, *args)
            if now:
                os.kill(os.getpid(), signal_)
            return result

        began = time.monotonic()
        with patch.object(Exchange, "_first", dying), pytest.raises((GatherError, RuntimeError)) as raised:
            training.step([batch(3, rank)])
        seconds = time.monotonic() - began
        for module in training.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        assert [name for name, shard in training.shards() if not torch.equal(shard, before[name])] == []
        with pytest.raises(GatherError, match="build them anew"):
            training.root.unshard()
        return seconds, type(raised.value).__name__, str(raised.value)

    for seconds, kind, message in survivors(world, victim, body, tmp_path, timeout_s=40):
        assert seconds < (3 * patience_s if signal_ == signal.SIGSTOP else patience_s), message
        assert kind == "GatherError", message
