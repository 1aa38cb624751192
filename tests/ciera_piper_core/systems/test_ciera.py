"""Tests of the ciera systems: every loss, norm and weight is fsdp's to the bit, and each switch does what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from torch.distributed import checkpoint

from ciera_piper_core.systems.ciera import Ciera, CieraOff, CieraReuse, CieraSelection
from ciera_piper_core.systems.fsdp import FSDPSystem
from tests.ciera_piper_core.systems.fsdp_family import (
    all_ranks,
    architecture,
    batch,
    bits_differ,
    built,
    recipe,
    trained,
    unigram_entropy,
    validation,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

SMALL_BLOCKS = {"block": 64}
SYSTEMS = [CieraReuse, CieraSelection, Ciera, CieraOff]


def gathers(system: Any) -> dict[str, int]:
    """How many gathers were of which kind."""
    kinds: dict[str, int] = {}
    for statistics in system.compressed.statistics.values():
        for kind, count in statistics.gathers.items():
            kinds[kind] = kinds.get(kind, 0) + count
    return kinds


@pytest.mark.parametrize(("precision", "systems"), [("bf16", SYSTEMS), ("fp32", [CieraReuse])])
def test_every_bit_is_fsdps(tmp_path: Path, precision: Any, systems: list[Any]) -> None:
    of_run = recipe(architecture=architecture(3), precision=precision, gradient_precision=precision, microbatches=2)
    steps = 9

    def body(context: Context) -> list[Any]:
        results = [trained(built(FSDPSystem, of_run, all_ranks(2)), steps)]
        for kind in systems:
            options = {**SMALL_BLOCKS, "settle": 1, "record": 2, "trial": 1} if kind.selects else SMALL_BLOCKS
            system = built(kind, of_run, all_ranks(2), **options)
            results.append(trained(system, steps))
            system.close()
        return results

    for reference, *others in run_world(2, body, tmp_path, timeout_s=90):
        for kind, other in zip(systems, others, strict=True):
            assert other.losses == reference.losses, kind.name
            assert other.norms == reference.norms, kind.name
            assert bits_differ(other.weights, reference.weights) == [], kind.name


def test_switches_do_what_they_say(tmp_path: Path) -> None:
    of_run = recipe(precision="bf16")

    def body(context: Context) -> None:
        found = {}
        for kind in (CieraReuse, Ciera, CieraOff):
            options = {**SMALL_BLOCKS, "settle": 1, "record": 2, "trial": 1} if kind.selects else SMALL_BLOCKS
            system = built(kind, of_run, all_ranks(2), **options)
            assert isinstance(system, CieraReuse)
            assert system.settled_after == (8 if kind.selects else 0)
            trained(system, 3)
            found[kind] = gathers(system)
            if kind.selects:
                assert system.adaptive is not None
                assert system.adaptive.selections == ()
                trained(system, 1, first=3)
                assert len(system.adaptive.selections) == 1
                # Shards this small gain nothing on a loopback.
                before = gathers(system)
                trained(system, 1, first=4)
                after = gathers(system)
                assert after["coded"] == before["coded"]
                assert after["plain"] > before["plain"]
            system.close()
        for kind in (CieraReuse, Ciera):
            kinds = found[kind]
            assert kinds["coded"] > kinds["refresh"] > 0
            assert kinds["plain"] == 0
        kinds = found[CieraOff]
        assert kinds["coded"] == kinds["refresh"] == 0
        # Three groups, the two layers twice a step.
        assert kinds["plain"] == 3 * 5

    run_world(2, body, tmp_path, timeout_s=90)


def test_pipelined_gathers_begin_before_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    real = dist.all_gather_single

    def watched(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        asked.append(async_op)
        return real(*args, async_op=async_op, **kwargs)

    monkeypatch.setattr(dist, "all_gather_single", watched)

    def body(context: Context) -> dict[str, int]:
        ahead = {}
        for kind in (FSDPSystem, CieraOff):
            system = built(kind, recipe(), all_ranks(2))
            trained(system, 1)
            asked.clear()
            trained(system, 1, first=1)
            # The weights are gathered once more for the result, by another function.
            ahead[kind.name] = sum(asked)
            system.close()
        return ahead

    # Both layers in both passes: the root, which is gathered once, begins the first gather of each.
    assert run_world(2, body, tmp_path) == [{"fsdp": 0, "ciera-off": 4}] * 2


def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    of_run = recipe(precision="bf16")
    folder = tmp_path / "state"

    def body(context: Context) -> None:
        first = built(CieraReuse, of_run, all_ranks(2), **SMALL_BLOCKS)
        trained(first, 3)
        checkpoint.save(first.state_dict(), checkpoint_id=folder)
        through = trained(first, 3, first=3)
        # Into one that has gathered other weights since, and into a new one.
        for system in (first, built(CieraReuse, of_run, all_ranks(2), **SMALL_BLOCKS)):
            state = system.state_dict()
            checkpoint.load(state, checkpoint_id=folder)
            system.load_state_dict(state)
            again = trained(system, 3, first=3)
            assert again.losses == through.losses
            assert bits_differ(again.weights, through.weights) == []
            system.close()

    run_world(2, body, tmp_path, timeout_s=90)


def test_evaluating_between_steps_changes_no_bit(tmp_path: Path) -> None:
    of_run = recipe(precision="bf16")

    def body(context: Context) -> None:
        reference = trained(built(FSDPSystem, of_run, all_ranks(2)), 4)
        system = built(Ciera, of_run, all_ranks(2), **SMALL_BLOCKS, settle=100)
        losses = []
        for step in range(4):
            system.evaluate(batch(77))
            losses += trained(system, 1, first=step).losses
        assert losses == reference.losses
        system.close()

    run_world(2, body, tmp_path, timeout_s=90)


@pytest.mark.slow
def test_two_hundred_steps_of_real_text_are_the_same_to_the_bit(tmp_path: Path) -> None:
    of_run = recipe(precision="bf16", gradient_precision="bf16", learning_rate=3e-3)

    def body(context: Context) -> tuple[list[float], list[float], list[str], float]:
        reference = built(FSDPSystem, of_run, all_ranks(2))
        system = built(Ciera, of_run, all_ranks(2), **SMALL_BLOCKS, settle=1000)
        expected, got = trained(reference, 200), trained(system, 200)
        evaluated = [one.evaluate(validation(8)) for one in (reference, system)]
        assert evaluated[0] == evaluated[1]
        return expected.losses, got.losses, bits_differ(expected.weights, got.weights), evaluated[0]

    for expected, got, differing, evaluated in run_world(2, body, tmp_path, timeout_s=150):
        assert got == expected
        assert differing == []
        assert evaluated < unigram_entropy() - 0.5
