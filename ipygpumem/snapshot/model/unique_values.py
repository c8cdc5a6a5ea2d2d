"""Sets of a file's numbers. `numpy.unique` and `numpy.isin` may hash, and a file can be made so that hashes collide."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["among", "distinct"]


_FACTOR = np.uint64(secrets.randbits(64) | 1)  # new in each process: nobody can foresee what will collide
_INVERSE = np.uint64(pow(int(_FACTOR), -1, 1 << 64))


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Each value once, in ascending order."""
    mixed = np.unique(values.astype(np.int64).view(np.uint64) * _FACTOR) * _INVERSE
    found: NDArray[Any] = np.sort(mixed.view(np.int64)).astype(values.dtype)
    return found


def among(values: NDArray[Any], table: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value is one of the table's."""
    if not len(table):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(table)
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found
