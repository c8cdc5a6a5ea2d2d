"""Sets of numbers by sorting: `numpy.unique` and `numpy.isin` may hash, and files can be made for hashes to collide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["among", "distinct"]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Each value once, in ascending order."""
    ordered = np.sort(values)
    first = np.concatenate([np.ones(min(len(ordered), 1), np.bool_), ordered[1:] != ordered[:-1]])
    found: NDArray[Any] = ordered[first]
    return found


def among(values: NDArray[Any], table: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value is one of the table's."""
    if not len(table):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(table)
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found
