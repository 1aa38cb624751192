"""How much room the variable part of the next payload gets: the same number on all ranks, from what all saw."""

from __future__ import annotations

LONGEST_PERIOD = 32
"""A training step makes few gathers of one layer: forward and backward, for each micro-batch."""

WINDOW = 3 * LONGEST_PERIOD
"""How many gathers are remembered."""

ALIGNMENT = 64
"""Payloads are multiples of it: gathers of sizes that are not multiples of 16 bytes are much slower
(pytorch/pytorch#195450), and a cache line keeps ranks' parts aligned for vector loads."""

COLD_SHARE = 16
"""Before anything is known, room for one part in so many of the most that could come."""

OVERFLOW_BYTES = 256 << 10
"""What a second collective costs beside its bytes, in bytes: its latency, on a network of about 1 to 10 Gbit/s."""

FADING = 64
"""What was unused or missing counts less by one part in so many with each later gather."""


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """The smallest multiple that holds ``size``."""
    return -(-size // alignment) * alignment


class CapacityPredictor:
    """Foretells the largest variable part over ranks from those of earlier gathers.

    A training step repeats itself: the gather for the forward pass finds what the optimizer changed,
    those that follow in the same step find nothing. How many gathers a step has is not known here, so
    every period up to ``LONGEST_PERIOD`` is followed. The one that would have cost least so far (room
    that stays empty, and collectives that follow) foretells, if it would have spared a second
    collective's worth over the plain maximum of all that is remembered; else that maximum does.

    Every rank must be told the same numbers in the same order, and then foretells the same: all
    arithmetic is on integers.
    """

    def __init__(self, most_bytes: int) -> None:
        """
        Args:
            most_bytes: the largest variable part that any rank can have.

        Raises:
            ValueError: it is negative.
        """
        if most_bytes < 0:
            raise ValueError(f"the largest variable part cannot have {most_bytes} bytes")
        self._most_bytes = aligned(most_bytes)
        self._history = [0] * (2 * LONGEST_PERIOD)
        self._known = 0
        cold = min(aligned(self._most_bytes // COLD_SHARE + 256), self._most_bytes)
        self._foretold = [cold] * LONGEST_PERIOD
        self._costs = [0] * LONGEST_PERIOD

    def record(self, largest_bytes: int) -> None:
        """What the largest variable part of a gather was, over ranks."""
        self._costs = [
            cost - cost // FADING + (room if room >= largest_bytes else largest_bytes + OVERFLOW_BYTES)
            for cost, room in zip(self._costs, self._foretold, strict=True)
        ]
        self._history = [*self._history[-WINDOW + 1 :], largest_bytes]
        self._known += 1
        history, known = self._history, self._known
        largest = max(history)
        # One period ago, or two, whichever was larger; index 0 is no period, but the maximum of all.
        sizes = [largest, *map(max, history[-2 : -LONGEST_PERIOD - 1 : -1], history[-4 : -2 * LONGEST_PERIOD - 1 : -2])]
        if known < LONGEST_PERIOD:
            sizes[known:] = [largest] * (LONGEST_PERIOD - known)
        # Change rates wander slowly: an eighth more, and a little for the smallest.
        most = self._most_bytes
        self._foretold = [min((size + size // 8 + 256 + ALIGNMENT - 1) & -ALIGNMENT, most) for size in sizes]

    def capacity(self) -> int:
        """Bytes of room for the next gather, a multiple of ``ALIGNMENT``."""
        best = self._costs.index(min(self._costs))
        if self._costs[best] + OVERFLOW_BYTES >= self._costs[0]:
            # Among so many periods there is always one that did well by chance.
            best = 0
        return self._foretold[best]
