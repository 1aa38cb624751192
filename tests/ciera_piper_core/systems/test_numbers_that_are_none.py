"""NaN in an activation or a gradient of one rank stops every system on all its ranks, with the step and the layer."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.training.health import NonFiniteError
from tests.ciera_piper_core.systems.every_system import WORLDS, built, named
from tests.ciera_piper_core.systems.expert_family import batch
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def spoil(system: Any, what: str) -> None:
    """From now on the last attention of this rank's model gives NaN, or passes NaN back."""
    attention = list(system.model.layers.values())[-1].attention

    def spoilt(module: object, inputs: object, output: Any) -> Any:
        if what == "output":
            return output * math.nan
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * math.nan)
        return output

    attention.register_forward_hook(spoilt)


def stopped(label: str, what: str, tmp_path: Path) -> str:
    """What all ranks say at the end of a run that goes wrong on one of them in step 1."""
    world = WORLDS[label]

    def body(context: Context) -> str:
        system = built(label, context)
        system.accumulate(batch(0))
        system.update()
        # The last one: in a pipeline its stage is not the first.
        if context.site.rank == world - 1:
            spoil(system, what)
        try:
            system.accumulate(batch(1))
            assert what == "gradient", "the loss is none, and nothing was said"
            system.update()
        except NonFiniteError as error:
            return str(error)
        finally:
            system.close()
        return "nothing"

    (said,) = set(run_world(world, body, tmp_path, timeout_s=110))
    return said


@pytest.mark.timeout(120)
@pytest.mark.parametrize("label", WORLDS)
def test_an_activation_is_named_by_all_ranks(label: str, tmp_path: Path) -> None:
    named(label)
    assert re.match(r"step 1: output of layers\.\d\.attention", stopped(label, "output", tmp_path)), label


@pytest.mark.timeout(120)
@pytest.mark.parametrize("label", WORLDS)
def test_a_gradient_is_named_by_all_ranks(label: str, tmp_path: Path) -> None:
    # DeepSpeed has dropped its gradients by then.
    where = "some weight" if named(label) in ("zero3", "deepspeed-moe") else r"\w+[.]"
    assert re.match(f"step 1: gradient of {where}", stopped(label, "gradient", tmp_path)), label
