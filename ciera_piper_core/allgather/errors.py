"""What goes wrong in a compressed Allgather."""

from __future__ import annotations


class GatherError(RuntimeError):
    """A gather that did not complete on this rank; what it was to fill must not be used."""


class GatherMismatchError(GatherError):
    """Ranks do not gather the same thing; the message names those that differ."""
