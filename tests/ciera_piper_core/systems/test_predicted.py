"""Predictions of a system's step: what they are made of, and how they go with the work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.platforms import load_platform
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.predicted import HostCosts, measure_host, predict
from ciera_piper_core.systems.system import Ranks, parse_options
from tests.ciera_piper_core.systems.pipelined_family import recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

PROFILE = Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"
PLATFORM = load_platform(str(PROFILE), "bf16")
SYSTEMS: dict[str, Any] = {"fsdp": FSDPSystem, "piper": PiperSystem}
HOST = HostCosts(forward=1.0, backward=2.0, update=0.5)
BF16: dict[str, Any] = {"precision": "bf16", "gradient_precision": "bf16"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two would wait for each other where others use the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def options(name: str, **given: str) -> dict[str, Any]:
    return parse_options(SYSTEMS[name], given)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_prediction_is_its_parts_and_grows_with_the_batch(name: str) -> None:
    small = predict(name, recipe(**BF16), options(name), 2, PLATFORM)
    large = predict(name, recipe(**BF16, global_batch=64), options(name), 2, PLATFORM)
    assert 0 < small.pipeline < small.total < large.total
    assert small.total == pytest.approx(small.pipeline + small.gathers + small.reductions + small.optimizer)
    # Parameters are as many whatever the batch.
    assert (small.gathers, small.optimizer) == (large.gathers, large.optimizer)


def test_a_host_is_paid_for_every_microbatch_and_shared_by_the_stages() -> None:
    bare = predict("fsdp", recipe(**BF16), options("fsdp"), 2, PLATFORM)
    paid = predict("fsdp", recipe(**BF16), options("fsdp"), 2, PLATFORM, HOST)
    assert paid.total - bare.total == pytest.approx(4 * (HOST.forward + HOST.backward) + HOST.update)
    # Two stages, four microbatches, one after the other filled and emptied: five halves of three seconds.
    piped = predict("piper", recipe(**BF16), options("piper", pp="2"), 2, PLATFORM, HOST)
    assert piped.pipeline == pytest.approx(5 / 2 * (HOST.forward + HOST.backward), rel=0.05)
    assert piped.optimizer == pytest.approx(HOST.update / 2, rel=0.05)


def test_gathers_are_of_each_microbatch_and_reductions_of_each_step() -> None:
    one = predict("fsdp", recipe(**BF16, microbatches=1), options("fsdp"), 2, PLATFORM)
    four = predict("fsdp", recipe(**BF16, microbatches=4), options("fsdp"), 2, PLATFORM)
    assert four.gathers == pytest.approx(4 * one.gathers)
    assert four.reductions == one.reductions
    kept = predict("fsdp", recipe(**BF16, microbatches=1), options("fsdp", reshard="false"), 2, PLATFORM)
    assert one.gathers / 2 < kept.gathers < one.gathers


def test_what_cannot_be_predicted_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no prediction of system 'xmoe'; there is one of fsdp, piper"):
        predict("xmoe", recipe(**BF16), {}, 2, PLATFORM)
    with pytest.raises(ValueError, match="looped_bfs is not planned"):
        predict("piper", recipe(**BF16), options("piper", pp="2", schedule="looped_bfs"), 2, PLATFORM)
    with pytest.raises(ValueError, match="bf16 or fp16"):
        predict("fsdp", recipe(), options("fsdp"), 2, PLATFORM)


def test_a_host_is_measured_on_one_rank() -> None:
    nobody: Any = None
    alone = Ranks(nobody, even_placement(1, 1), torch.device("cpu"))
    found = measure_host(Plain, replace(recipe(), microbatches=2), alone, {})
    # Some operations each.
    assert found.forward > 1e-4
    assert found.backward > 1e-4
    assert found.update > 0
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="on one rank, not on 2"):
        measure_host(Plain, recipe(), Ranks(nobody, even_placement(2, 2), torch.device("cpu")), {})
