"""What a shell completes for models, machines and training systems."""

from __future__ import annotations


def complete_model(incomplete: str) -> list[str]:
    """Names of the catalogue that begin so."""
    from ciera_piper_core.models.catalogue import names

    return _beginning(names(), incomplete)


def complete_platform(incomplete: str) -> list[str]:
    """Built-in machines that begin so."""
    from ciera_piper_core.platforms import names

    return _beginning(names(), incomplete)


def complete_systems(incomplete: str) -> list[str]:
    """The list so far, with its last part as each system that begins so and is not in it."""
    from ciera_piper_core.systems import system_names

    before, comma, last = incomplete.rpartition(",")
    there = before.split(",")
    return [before + comma + name for name in _beginning(system_names(), last) if name not in there]


def _beginning(names: list[str] | tuple[str, ...], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
