"""Names of suites and presets on the command line, and how a shell completes them."""

from __future__ import annotations

from typing import Annotated

import typer


def complete_suite(incomplete: str) -> list[str]:
    """Names of installed suites that begin so."""
    from bench.registry import suite_names

    return [name for name in suite_names() if name.startswith(incomplete)]


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin so."""
    from bench.suite import PRESETS

    return [preset for preset in PRESETS if preset.startswith(incomplete)]


PresetOption = Annotated[str, typer.Option("--preset", help="quick, standard or full.", autocompletion=complete_preset)]
