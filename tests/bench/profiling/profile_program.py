"""Runs ``bench profile`` in a process of its own, for tests of what users see."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.program import environment

if TYPE_CHECKING:
    from pathlib import Path

COLLECTIVE = ("collectives", "--ranks", "2", "--select", "op=all_gather", "--set", "bytes=64KiB")
CALL = """
import sys
import typer
from bench.errors import BenchError
from bench.profile_command import profile
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(profile)
if __name__ == "__main__":
    try:
        app()
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
"""


def profile(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """``bench profile`` in a process of its own, working in ``folder``."""
    (folder / "call.py").write_text(CALL)
    return subprocess.run(
        [sys.executable, "call.py", *arguments],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
