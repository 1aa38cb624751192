"""Migration in systems that spread experts: the options that ask for it, and how it is attached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ciera_piper_core.moe.migration.migrator import Migrator
from ciera_piper_core.moe.migration.solver import SOLVERS
from ciera_piper_core.moe.migration.trigger import Policy
from ciera_piper_core.systems.system import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.moe.migration.trigger import Costs
    from ciera_piper_core.systems.replicated import ReplicatedSystem

OPTIONS: Mapping[str, Option] = {
    "migrate": Option(0, "steps between checks whether moving experts would pay; 0: they stay", minimum=0),
    "spare": Option(0, "experts that a rank has room for beyond its even share, when they move", minimum=0),
    "solver": Option("search", "where experts go: search, or the paper's swaps", SOLVERS),
}
"""For the ``options`` of a system."""

LONGEST_WINDOW = 10
"""Steps before a check whose counts it looks at."""


def policy_of(options: Mapping[str, Any]) -> Policy | None:
    """When experts move, by the values of ``OPTIONS``; None for never.

    Raises:
        ValueError: a number below 0.
    """
    every = int(options.get("migrate", 0))
    if every < 0:
        raise ValueError(f"migrate={every}: steps between two checks cannot be below 0; 0 is for none")
    if not every:
        return None
    return Policy(
        check_every=every,
        window=min(every, LONGEST_WINDOW),
        spare_experts=int(options["spare"]),
        solver=options["solver"],
    )


def attach(system: ReplicatedSystem, policy: Policy, costs: Costs | None = None) -> Migrator:
    """Let a system's experts move from now on (collective over its ranks).

    Stages of a pipeline have layers of their own, and decide for themselves.

    Returns:
        what moves them, which is the system's ``migration`` now.
    """
    group = system.mesh.group(*(axis for axis in system.mesh.sizes if axis != "pp"))
    migrator = Migrator(system.experts, system.masters, group, policy, costs=costs)
    system.migration = migrator
    return migrator
