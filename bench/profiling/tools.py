"""The profilers that wrap a rank's command, and whether each tool can be used on this machine."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bench.errors import UsageError
from bench.launch.stacks import py_spy_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.launch.site import Device
    from bench.profiling.settings import Tool
    from bench.suite import Site

WRAPPING: tuple[Tool, ...] = ("nsys", "ncu")
"""Tools that a rank is started below; a group of ranks then serves one case."""
FINISH_S = 120.0
"""How long such a tool may take to write its report after its rank has left."""
SUFFIX = {"nsys": "nsys-rep", "ncu": "ncu-rep"}


def require_tool(tool: Tool, device: Device) -> None:
    """Refuse, before anything starts, what cannot work here.

    Raises:
        UsageError: names what is missing and how to get it.
    """
    if tool == "py-spy" and py_spy_path() is None:
        raise UsageError("--with py-spy: py-spy is not installed; pip install py-spy")
    if tool in WRAPPING and shutil.which(tool) is None:
        package = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}[tool]
        raise UsageError(
            f"--with {tool}: no program {tool} on PATH; it comes with NVIDIA {package}"
            f" (https://developer.nvidia.com/{package.lower().replace(' ', '-')})"
        )
    if tool == "ncu" and device != "cuda":
        raise UsageError(
            "--with ncu: it profiles GPU kernels, and no CUDA device is used here; --with torch works on a CPU"
        )


def wrapper(tool: Tool, folder: Path, device: Device) -> Callable[[Site, list[str]], list[str]] | None:
    """A function from a rank's command to one below the tool; None for tools that need no such thing.

    On a GPU the tool waits for the rank's cudaProfilerStart, so set-up and warm-up are not in its report.
    """
    if tool not in WRAPPING:
        return None

    def wrapped(site: Site, argv: list[str]) -> list[str]:
        return [*_tool_command(tool, folder / f"rank{site.rank}.{SUFFIX[tool]}", device), *argv]

    return wrapped


def _tool_command(tool: Tool, report: Path, device: Device) -> list[str]:
    if tool == "ncu":
        return [
            "ncu",
            f"--export={report}",
            "--force-overwrite",
            "--target-processes=all",
            "--profile-from-start=off",
            "--nvtx",
        ]
    on_demand = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if device == "cuda" else []
    return [
        "nsys",
        "profile",
        f"--output={report}",
        "--force-overwrite=true",
        f"--trace={'cuda,nvtx,osrt' if device == 'cuda' else 'nvtx,osrt'}",
        *on_demand,
    ]
