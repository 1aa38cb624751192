"""The log of collectives: what two ranks disagree on is found and named, and every system's ranks agree.

``FULL_TRAINING=1`` in the environment checks 500 steps of each system instead of 50.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
import torch._dynamo  # FSDP2 and DeepSpeed load it: better once here than in every forked rank
import torch.distributed as dist

from ciera_piper_core.alltoall.communicators import Communicators
from ciera_piper_core.systems import load_system, system_names
from ciera_piper_core.systems.system import parse_options, parse_system
from ciera_piper_core.training.breakdown import marked_step
from ciera_piper_core.training.collective_log import (
    Call,
    Channel,
    differences,
    logging_collectives,
    order_differences,
)
from ciera_piper_core.training.wire_bytes import KINDS
from tests.ciera_piper_core.systems import pipelined_family
from tests.ciera_piper_core.systems.expert_family import batch, ranks_of, recipe
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

PAIR = Channel("7", (2, 5))
SUM, COPY = Call("allreduce", 40), Call("broadcast", 8)
FULL = bool(os.environ.get("FULL_TRAINING"))
STEPS, BETWEEN = 500 if FULL else 50, 50
DEEPSPEED = {"zero3", "deepspeed-moe"}
OPTIONS = {"piper": "piper:pp=2", "piper+ciera": "piper+ciera:pp=1", "ted": "ted:tp=2"}
"""What two ranks need said."""


def test_ranks_that_do_the_same_agree() -> None:
    assert differences({2: {PAIR: [SUM, COPY]}, 5: {PAIR: [SUM, COPY]}}) == []
    # A rank that was not asked, and a group of another, are no differences.
    assert differences({2: {PAIR: [SUM]}, 3: {Channel("8", (3,)): [COPY]}}) == []


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        ([SUM, COPY], [COPY, SUM], "call 0 is allreduce of 40 B on rank 2, but broadcast of 8 B on rank 5"),
        ([SUM], [Call("allreduce", 44)], "call 0 is allreduce of 40 B on rank 2, but allreduce of 44 B on rank 5"),
        ([SUM, COPY], [SUM], "call 1, broadcast of 8 B on rank 2, was never made on rank 5"),
        ([], [SUM], "call 0, allreduce of 40 B on rank 5, was never made on rank 2"),
    ],
)
def test_the_first_difference_is_named(one: list[Call], other: list[Call], line: str) -> None:
    found = differences({2: {PAIR: one} if one else {}, 5: {PAIR: other}})
    assert found == [f"group 7 of ranks 2, 5: {line}"]


def test_messages_are_ordered_between_each_two_ranks() -> None:
    way = Channel("7", (2, 5, 6), pair=(2, 0))
    found = differences({6: {way: [Call("message", 4)]}, 2: {way: [Call("message", 8)]}, 5: {}})
    assert found == [
        "rank 6 to rank 2 in group 7 of ranks 2, 5, 6: call 0 is message of 4 B on rank 6, but message of 8 B on rank 2"
    ]


def test_real_ranks_are_compared(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[list[str], dict[str, int], list[str]]:
        rank, group = context.site.rank, context.group.data
        assert group is not None
        alone = dist.new_group([rank], backend="gloo", use_local_synchronization=True)
        with logging_collectives() as log:
            dist.all_reduce(torch.ones(4), group=group)
            if rank == 0:
                dist.send(torch.ones(3), 1, group=group)
            else:
                dist.recv(torch.empty(3), 0, group=group)
                # Of one rank alone, which no other can contradict.
                dist.all_reduce(torch.ones(1), group=alone)
        agreed, counts = order_differences(log, group), dict(log.counts)
        if rank == 1:
            # As if it had made one more, which for real would hang.
            next(each for channel, each in log.calls.items() if channel.pair is None).append(SUM)
        return agreed, counts, order_differences(log, group)

    zero, one = run_world(2, body, tmp_path)
    assert zero[0] == one[0] == []
    assert zero[1] == {"all_reduce": 1, "send_recv": 1}
    assert one[1] == {"all_reduce": 2, "send_recv": 1}
    assert zero[2] == one[2]
    assert len(one[2]) == 1
    assert "of ranks 0, 1: call 1, allreduce of 40 B on rank 1, was never made on rank 0" in one[2][0]


def test_threads_log_too_and_calls_within_calls_once(tmp_path: Path) -> None:
    def body(context: Context) -> dict[str, int]:
        with logging_collectives() as log:
            thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(4), group=context.group.data))
            thread.start()
            thread.join()
        return log.counts

    assert run_world(2, body, tmp_path) == [{"all_reduce": 1}] * 2


def test_classes_are_as_they_were_afterwards() -> None:
    before = ({name: vars(dist.ProcessGroup).get(name) for name in KINDS}, Communicators.exchange_within_node)
    with suppress(RuntimeError), logging_collectives():
        assert any(vars(dist.ProcessGroup).get(name) is not before[0][name] for name in KINDS)
        raise RuntimeError("inside")
    after = ({name: vars(dist.ProcessGroup).get(name) for name in KINDS}, Communicators.exchange_within_node)
    assert after == before


@pytest.mark.slow
@pytest.mark.timeout(900 if FULL else 90)
@pytest.mark.parametrize(
    ("name", "world"),
    [*((name, 2) for name in system_names()), ("piper", 4), ("piper+ciera", 4), ("piper:pp=2:schedule=dualpipev", 4)],
)
def test_ranks_of_every_system_agree_on_the_order(name: str, world: int, tmp_path: Path) -> None:
    if name in DEEPSPEED and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs the extra deepspeed")

    def body(context: Context) -> tuple[list[str], int]:
        system_name, options = parse_system(OPTIONS.get(name, name) if world == 2 else name)
        kind = load_system(system_name)
        given = recipe(microbatches=2 if name.startswith("piper") else 1)
        if "dualpipev" in name:
            # Two stages a rank need a layer each, and as many microbatches.
            given = replace(pipelined_family.recipe(), sequence=given.sequence)
        found, calls = [], 0
        with logging_collectives() as log:
            system = kind(given, ranks_of(context), parse_options(kind, options))
            for step in range(STEPS):
                marked_step(system, batch(step))
                if (step + 1) % BETWEEN == 0:
                    calls += sum(log.counts.values())
                    found += order_differences(log, context.group.control)
                    context.group.barrier()
                    log.clear()
            system.close()
        return found, calls

    for found, calls in run_world(world, body, tmp_path, timeout_s=850 if FULL else 80):
        assert found == []
        assert calls >= STEPS or name == "plain"
