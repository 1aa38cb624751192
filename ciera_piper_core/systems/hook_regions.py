"""Marks what a library does in hooks around a module's forward pass as a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

BEFORE, AFTER = "_forward_pre_hooks", "_forward_hooks"
"""Where torch keeps hooks, by their numbers."""


def mark_hooks(module: torch.nn.Module, kept: str, name: str, theirs: Callable[[Any], bool]) -> int:
    """Make each of a module's own hooks a region, in its place; how many those are.

    Args:
        kept: ``BEFORE`` or ``AFTER``.
        name: of the region.
        theirs: whether a hook is the library's.
    """
    hooks = getattr(module, kept)
    found = [number for number, hook in hooks.items() if theirs(hook)]
    for number in found:
        hooks[number] = region(name)(hooks[number])
    return len(found)
