"""Tests of checkpoints: resuming is as if nothing had been, on other ranks too, and a save that dies does no harm."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from ciera_piper_core.systems.ciera import Ciera
from ciera_piper_core.systems.fsdp import FSDPSystem
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.training import checkpoint
from ciera_piper_core.training.checkpoint import (
    ABOUT,
    CheckpointError,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    read_about,
    save_checkpoint,
)
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.expert_family import build, recipe, worst
from tests.ciera_piper_core.training.resumed_runs import AFTER, BEFORE, alone, ranks_of, resumed_on, saved_on, steps
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem

PHASES: dict[str, tuple[Any, str]] = {
    "part": (FileSystemWriter, "write_data"),
    "metadata": (FileSystemWriter, "finish"),
    "name": (checkpoint, "_sync_folder"),
}
"""Of a save, what a rank dies in. The last: all files are there, and the folder does not have its name yet."""


def test_plain_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Adafactor, fp16 with its loss scale, biases of routers: all that is state."""
    for given in (
        recipe(),
        recipe(optimizer="adafactor", precision="bf16"),
        recipe(precision="fp16", routing=Routing("loss_free", bias_rate=0.01)),
    ):
        folder = tmp_path / given.precision
        system = Plain(given, alone(), {})
        steps(system, range(BEFORE))
        path = save_checkpoint(system, folder, BEFORE)
        wanted = steps(system, range(BEFORE, BEFORE + AFTER))
        again = Plain(given, alone(), {})
        assert load_checkpoint(again, path).step == BEFORE
        assert steps(again, range(BEFORE, BEFORE + AFTER)) == wanted


@pytest.mark.parametrize("system", [FSDPSystem, Ciera])
def test_sharded_parameters_on_other_numbers_of_ranks(system: type[TrainingSystem], tmp_path: Path) -> None:
    given, folder = recipe(), tmp_path / "run"
    wanted = saved_on(2, system, given, "", folder, tmp_path)
    assert resumed_on(2, system, given, "", folder, tmp_path) == wanted
    for world in (1, 4):
        # The mean over ranks is a sum in another order.
        assert worst(resumed_on(world, system, given, "", folder, tmp_path), wanted) < 1e-5


def test_what_one_system_saves_its_equal_loads(tmp_path: Path) -> None:
    given, folder = recipe(), tmp_path / "run"
    wanted = saved_on(2, FSDPSystem, given, "", folder, tmp_path)
    assert resumed_on(2, Ciera, given, "", folder, tmp_path) == wanted


def test_experts_on_another_ep(tmp_path: Path) -> None:
    given, folder = recipe(), tmp_path / "run"
    wanted = saved_on(2, XMoESystem, given, "ep=2", folder, tmp_path)
    assert resumed_on(2, XMoESystem, given, "ep=2", folder, tmp_path) == wanted
    for world, options in ((4, "ep=4"), (4, "ep=1"), (1, "ep=1")):
        got = resumed_on(world, XMoESystem, given, options, folder, tmp_path)
        assert worst(got, wanted) < 1e-5, options


def test_stages_on_other_ranks(tmp_path: Path) -> None:
    given, folder = recipe(microbatches=2), tmp_path / "run"
    wanted = saved_on(4, PiperSystem, given, "pp=2:ep=2", folder, tmp_path)
    assert resumed_on(4, PiperSystem, given, "pp=2:ep=2", folder, tmp_path) == wanted
    assert worst(resumed_on(2, PiperSystem, given, "pp=2:ep=1", folder, tmp_path), wanted) < 1e-5


def test_a_rank_killed_in_any_phase_of_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    """While it writes its part; before the metadata; between the last file and the new name."""
    given, folder = recipe(), tmp_path / "run"
    wanted = saved_on(2, FSDPSystem, given, "", folder, tmp_path)
    for phase in PHASES:

        def body(context: Context, phase: str = phase) -> None:
            built = build(FSDPSystem, given, ranks_of(context))
            steps(built, range(BEFORE + 1))

            def die(*_: object, **__: object) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            owner, method = PHASES[phase]
            victim = 1 if phase == "part" else 0
            if context.group.rank == victim:
                with patch.object(owner, method, die):
                    save_checkpoint(built, folder, BEFORE + 1)
            else:
                save_checkpoint(built, folder, BEFORE + 1)

        with pytest.raises(AssertionError, match=r"died|raised"):
            run_world(2, body, tmp_path)
        assert [path.name for path in checkpoints(folder)] == ["step-00000002"], phase
        assert any(path.name.endswith(".partial") for path in folder.iterdir()), phase
        assert resumed_on(2, FSDPSystem, given, "", folder, tmp_path) == wanted, phase
    # The next save clears what the last left behind.
    saved_on(2, FSDPSystem, given, "", folder, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["step-00000002"]


def test_an_error_while_writing_is_everybodys(tmp_path: Path) -> None:
    """A full disk on one rank."""
    given, folder = recipe(), tmp_path / "run"

    def body(context: Context) -> str:
        built = build(FSDPSystem, given, ranks_of(context))
        save_checkpoint(built, folder, 0)

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patched:
            if context.group.rank == 1:
                patched.setattr(FileSystemWriter, "write_data", full)
            with pytest.raises(CheckpointError, match=r"written: rank 1: OSError\(28, 'No space left") as error:
                save_checkpoint(built, folder, 1)
        assert checkpoints(folder)[-1].name == "step-00000000"
        # And the run goes on, and saves when it can.
        save_checkpoint(built, folder, 1)
        built.close()
        return str(error.value)

    first, second = run_world(2, body, tmp_path)
    assert first == second
    assert [path.name for path in checkpoints(folder)] == ["step-00000000", "step-00000001"]


def test_old_ones_go_and_the_same_step_is_replaced(tmp_path: Path) -> None:
    system = Plain(recipe(), alone(), {})
    for step in range(3):
        save_checkpoint(system, tmp_path, step)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000001", "step-00000002"]
    steps(system, [0])
    save_checkpoint(system, tmp_path, 2)
    weights = system.full_parameters()
    again = Plain(recipe(), alone(), {})
    load_checkpoint(again, tmp_path / "step-00000002")
    assert all(torch.equal(again.full_parameters()[name], weight) for name, weight in weights.items())
    for step in (3, 4, 5):
        save_checkpoint(system, tmp_path, step, keep=0)
    assert len(checkpoints(tmp_path)) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in checkpoints(tmp_path)]
    with pytest.raises(ValueError, match="0 or more"):
        save_checkpoint(system, tmp_path, -1)


def test_random_numbers_go_on(tmp_path: Path) -> None:
    system = Plain(recipe(), alone(), {})
    torch.manual_seed(5)
    torch.rand(3)
    path = save_checkpoint(system, tmp_path, 1)
    wanted = torch.rand(4)
    torch.manual_seed(6)
    load_checkpoint(system, path)
    assert torch.equal(torch.rand(4), wanted)


def test_what_is_no_checkpoint_of_this_run_is_refused(tmp_path: Path) -> None:
    given = recipe()
    path = save_checkpoint(Plain(given, alone(), {}), tmp_path, 7)
    assert read_about(path).step == 7
    for changes, message in (
        ({"seed": 1}, "checkpoint's seed is 0, but the recipe's is 1"),
        ({"global_batch": 4}, "global_batch is 8"),
        ({"architecture": recipe(experts=4).architecture}, "architecture is small"),
        ({"routing": Routing(balance_weight=0.2)}, "routing"),
        ({"optimizer": "adafactor"}, "optimizer is adam, but"),
    ):
        with pytest.raises(ValueError, match=message):
            load_checkpoint(Plain(replace(given, **changes), alone(), {}), path)
    slower = replace(given, learning_rate=1e-4, microbatches=2)
    assert load_checkpoint(Plain(slower, alone(), {}), path).changed == ("learning_rate", "microbatches")
    with pytest.raises(ValueError, match="is no checkpoint"):
        read_about(tmp_path)
    about = json.loads((path / ABOUT).read_text())
    (path / ABOUT).write_text(json.dumps({**about, "system": "fsdp", "exact_as": "fsdp"}))
    with pytest.raises(ValueError, match="of system fsdp, which plain cannot continue"):
        load_checkpoint(Plain(given, alone(), {}), path)
    (path / ABOUT).write_text(json.dumps({**about, "version": 99}))
    with pytest.raises(ValueError, match="version 99"):
        read_about(path)
    assert latest_checkpoint(tmp_path / "nowhere") is None
