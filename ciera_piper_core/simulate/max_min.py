"""Max-min fair rates: no flow gets more unless one with no more than it gets less.

Progressive filling: all flows rise together until the link with the least room a flow is full; its
flows stay at that rate, the others rise on. Links are frozen in batches: all whose share is within
a tolerance of the least, each at its own share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

EXACT = 1e-9
"""Tolerance for shares that are equal but for rounding."""

SCAN_SHARE = 0.125
"""Looking at all open classes is cheaper than looking up a list where so many of them are to be frozen."""


class FairShare:
    """Classes of flows on links; a class is any number of flows over the same links.

    Args:
        paths: links of each class, -1 for none, shape ``(classes, width)``.
        bytes_s: of each link, shape ``(links,)``.

    Raises:
        ValueError: a class without any link, which nothing would limit, or an unknown link.
    """

    def __init__(self, paths: NDArray[np.int32], bytes_s: Floats) -> None:
        links = len(bytes_s)
        if paths.size and not (paths.max(axis=1) >= 0).all():
            raise ValueError("every class of flows must take at least one link")
        if paths.size and paths.max() >= links:
            raise ValueError(f"a class takes link {paths.max()}, but there are {links}")
        small = np.uint16 if links < 2**16 else np.int32
        # One array a column; the number after the last link stands for none.
        self._columns = [np.where(column < 0, links, column).astype(small) for column in paths.T]
        self._room = np.append(np.asarray(bytes_s, dtype=np.float64), np.inf)
        self._none = links
        self._lists: tuple[Ints, Ints] | None = None

    @property
    def classes(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def take(self, kept: Ints) -> FairShare:
        """The same links with only the classes number ``kept``."""
        taken = FairShare.__new__(FairShare)
        taken._columns = [column[kept] for column in self._columns]
        taken._room, taken._none, taken._lists = self._room, self._none, None
        return taken

    def load(self, volume: Floats) -> Floats:
        """What all links carry, for ``volume`` of each class: shape ``(links,)``."""
        return self._sum([(column, volume) for column in self._columns])[:-1]

    def rates(self, flows: Floats, tolerance: float = EXACT) -> Floats:
        """Rate of each flow of each class, bytes a second, shape ``(classes,)``; 0 where there is no flow.

        Args:
            flows: number of flows of each class, 0 or more.
            tolerance: links whose shares differ relatively by less count as equally full.
        """
        rates = np.zeros(self.classes)
        room = self._room.copy()
        count = self._sum([(column, flows) for column in self._columns])
        count[self._none] = 0
        live = np.flatnonzero(flows)
        is_open = flows > 0
        remaining = len(live)
        while remaining:
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(count > 0.5, np.maximum(room, 0) / count, np.inf)
            full = share <= share.min() * (1 + tolerance)
            level = np.where(full, share, np.inf)
            # The count of flows bounds that of classes.
            if count[full].sum() > SCAN_SHARE * remaining:
                live = live[is_open[live]]
                reached = self._least(level, live)
                stopped = np.isfinite(reached)
                frozen, rate = live[stopped], reached[stopped]
            else:
                frozen = self._on_links(np.flatnonzero(full), is_open)
                rate = self._least(level, frozen)
            rates[frozen] = rate
            is_open[frozen] = False
            remaining -= len(frozen)
            number = flows[frozen]
            chosen = [column[frozen] for column in self._columns]
            count -= self._sum([(links, number) for links in chosen])
            room -= self._sum([(links, number * rate) for links in chosen])
            count[full] = 0
            count[self._none], room[self._none] = 0, np.inf
        return rates

    def _sum(self, parts: list[tuple[NDArray[np.generic], Floats]]) -> Floats:
        total = np.zeros(self._none + 1)
        for links, weights in parts:
            total += np.bincount(links, weights, self._none + 1)
        return total

    def _least(self, level: Floats, classes: Ints) -> Floats:
        """The least level along the links of these classes."""
        least: Floats = level[self._columns[0][classes]]
        for column in self._columns[1:]:
            np.minimum(least, level[column[classes]], out=least)
        return least

    def _on_links(self, links: Ints, is_open: NDArray[np.bool_]) -> Ints:
        """Open classes on any of these links."""
        if self._lists is None:
            flat = np.concatenate(self._columns)
            order = np.argsort(flat, kind="stable")
            first = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=self._none + 1))])
            self._lists = ((order % self.classes).astype(np.int32), first)
        classes, first = self._lists
        found = np.concatenate([classes[first[link] : first[link + 1]] for link in links])
        found = found[is_open[found]]
        # A class may be on two of the links.
        return np.unique(found) if len(links) > 1 else found.astype(np.int64)
