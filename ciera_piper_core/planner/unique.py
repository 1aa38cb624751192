"""Distinct combinations of integer columns, so that work is done once for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray


class Unique:
    """The distinct rows of some columns of one length.

    Attributes:
        first: the place of each distinct row's first appearance.
        places: of each row, the distinct row that it is: ``column[first][places] == column``.
    """

    def __init__(self, *columns: NDArray[np.int64]) -> None:
        """Columns hold integers from 0; the product of their ranges must stay below 2**63.

        Raises:
            ValueError: it does not.
        """
        self._columns = columns
        code = np.zeros(len(columns[0]), dtype=np.int64)
        combinations = 1
        for column in columns:
            size = int(column.max(initial=0)) + 1
            combinations *= size
            code = code * size + column
        if combinations >= 2**63:
            raise ValueError("too many combinations of columns to number them")
        self.first: NDArray[np.int64]
        self.places: NDArray[np.int64]
        _, self.first, self.places = np.unique(code, return_index=True, return_inverse=True)

    @property
    def keys(self) -> list[tuple[int, ...]]:
        """Each distinct row as plain integers, ordered."""
        return [tuple(int(column[place]) for column in self._columns) for place in self.first]


def by_value(make: Callable[..., ArrayLike], *columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """``make(*values)`` of each row's values, stacked along the first axis; called once a distinct row."""
    rows = Unique(*columns)
    return np.asarray(np.stack([np.asarray(make(*key), dtype=np.float64) for key in rows.keys])[rows.places])
