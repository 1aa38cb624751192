"""All training systems in one table, each on few ranks in the way that is its own: for what must hold of every one."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
import torch

# FSDP2 and DeepSpeed load it: better once here than in every forked rank.
import torch._dynamo

from ciera_piper_core.systems import load_system
from ciera_piper_core.systems.system import parse_options, parse_system
from tests.ciera_piper_core.systems.expert_family import recipe
from tests.ciera_piper_core.training.resumed_runs import ranks_of

if TYPE_CHECKING:
    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

WORLDS = {
    "piper:pp=2:ep=2": 4,
    "ciera": 2,
    "tutel:ep=4": 4,
    "zero3": 2,
    "xmoe:ep=2": 4,
    "ted:tp=2:ep=2": 4,
    "deepspeed-moe:ep=2": 4,
    "zeropp": 4,
    "piper+ciera:pp=2:ep=1": 4,
    "fsdp": 2,
    "ciera-off": 2,
    "ciera-reuse": 2,
    "ciera-selection": 2,
    "plain": 1,
}
"""Ranks by system. Where only the first case is run, it is a pipeline of ranks that share experts."""


def named(label: str) -> str:
    """The system's name without its options; skips the test where its extra is not installed."""
    name = parse_system(label)[0]
    if name in ("zero3", "deepspeed-moe"):
        if importlib.util.find_spec("deepspeed") is None:
            pytest.skip("needs the extra deepspeed")
        from ciera_piper_core.systems.deepspeed_engine import import_deepspeed

        # Once, before ranks are forked: it takes seconds.
        import_deepspeed(torch.device("cpu"))
    return name


def built(label: str, context: Context, given: Recipe | None = None) -> TrainingSystem:
    """The system on all ranks (collective); its recipe has two microbatches, which a pipeline needs."""
    name, options = parse_system(label)
    kind = load_system(name)
    return kind(given or recipe(microbatches=2), ranks_of(context), parse_options(kind, options))
