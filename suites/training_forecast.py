"""What the planner's model says of a training step, from a platform profile and what a rank does by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.suite import Forecast

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.systems.system import Ranks
    from suites.training_case import Training


def forecast(training: Training, ranks: Ranks, alive: Callable[[], None], profile: str) -> Forecast:
    """The prediction for a system on these ranks (collective: each rank measures what it does by itself).

    Args:
        profile: of this machine, file or folder.
    """
    from ciera_piper_core.platforms import load_platform
    from ciera_piper_core.systems.predicted import message_seconds, predict, spread_of
    from ciera_piper_core.systems.rank_costs import measure_rank_costs

    name, recipe, options = training.system.name, training.recipe, training.options
    try:
        platform = load_platform(profile)
        spread = spread_of(name, recipe, options, ranks.world)
        sent = message_seconds(platform, ranks.placement, str(options.get("alltoall", "")))
        costs = measure_rank_costs(training.system, recipe, ranks, spread.options, spread.width, sent, alive=alive)
        found = predict(name, recipe, options, ranks.placement, platform, costs, ranks_at_once(ranks))
    except ValueError as error:
        # Sizes and the profile decide, so every rank comes here or none.
        return Forecast(reason=str(error))
    known: dict[tuple[str, str], list[str]] = {}
    for part, value in found.parts.items():
        if value.seconds:
            known.setdefault((value.status, value.how), []).append(part)
    basis = tuple(f"{', '.join(parts)}: {status}, {how}" for (status, how), parts in known.items())
    return Forecast({part: value.seconds for part, value in found.parts.items()}, platform.name, basis)


def ranks_at_once(ranks: Ranks) -> int:
    """Ranks that all hosts together have cores for; every one of them on GPUs (collective)."""
    import torch
    import torch.distributed as dist

    if ranks.device.type == "cuda":
        return ranks.world
    mine = (_host(), len(os.sched_getaffinity(0)) // torch.get_num_threads())
    everyone = [mine] * ranks.world
    dist.all_gather_object(everyone, mine, group=ranks.group)
    return sum(max(1, of_host) for of_host in dict(everyone).values())


def _host() -> str:
    """Names this host also where emulated nodes have names of their own."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text() if path.exists() else os.uname().nodename
