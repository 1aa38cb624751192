"""Training systems behind one interface, found through the entry points ``ciera_piper_core.systems``.

Importing this module is cheap; a system loads torch when it is looked up.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciera_piper_core.systems.system import TrainingSystem

ENTRY_POINTS = "ciera_piper_core.systems"


def system_names() -> tuple[str, ...]:
    """Names of all installed systems, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINTS)}))


def load_system(name: str) -> type[TrainingSystem]:
    """The system of that name.

    Raises:
        ValueError: no such system (the message lists them), or what the entry point names is none.
    """
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not points:
        raise ValueError(f"unknown system {name!r}; known: {', '.join(system_names())}")
    from ciera_piper_core.systems.system import TrainingSystem

    loaded = points[0].load()
    if not (isinstance(loaded, type) and issubclass(loaded, TrainingSystem)):
        raise ValueError(f"system {name!r}: {points[0].value} is no TrainingSystem")
    return loaded
