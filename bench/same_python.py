"""The command of a Python that imports from where this process does."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command() -> list[str]:
    """This Python, with ``-P`` unless this process imports from the working folder too.

    ``python -m`` puts the working folder first. Where ``bench`` is called in a checkout but is installed elsewhere, a
    rank would import the checkout's packages, without the kernels that were built for the installed ones.
    """
    here = Path.cwd()
    return [sys.executable] if any(_leads_to(entry, here) for entry in sys.path) else [sys.executable, "-P"]


def _leads_to(entry: str, folder: Path) -> bool:
    try:
        return os.path.samefile(entry or ".", folder)
    except OSError:
        return False
