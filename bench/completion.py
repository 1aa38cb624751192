"""What a shell completes: names of suites and presets."""

from __future__ import annotations


def complete_suite(incomplete: str) -> list[str]:
    """Names of installed suites that begin so."""
    from bench.registry import suite_names

    return [name for name in suite_names() if name.startswith(incomplete)]


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin so."""
    from bench.suite import PRESETS

    return [preset for preset in PRESETS if preset.startswith(incomplete)]
