"""Numbers without a declared meaning: user counters and tracked values, with the units that they may name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.importers.definitions import OTHER_VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.importers.contents import Contents

PREFIXED = "param_"
"""Before a benchmark's own parameter whose name an importer needs itself."""


def add_other(
    contents: Contents, name: str, params: Mapping[str, Any], value: object, unit: str = "", **row: Any
) -> None:
    """A number of which only the name, and perhaps a unit, is known; the unit stays a parameter.

    So two rows in other units are never compared. The direction is unknown unless the user says it.
    """
    contents.add(name, OTHER_VALUE, {**params, "unit": unit} if unit else params, value, **row)


def own_params(params: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """``taken`` and a benchmark's own parameters, which never replace what the importer sets."""
    return {
        **{(f"{PREFIXED}{name}" if name in taken else str(name)): value for name, value in params.items()},
        **taken,
    }
