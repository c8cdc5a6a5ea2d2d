"""Finds distinct values in untrusted files by sorting instead of hashing.

`numpy.unique` and `numpy.isin` may use hash tables, and a malicious file can contain values with colliding hashes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class IndexByValue(dict[Any, int]):
    """A dict that assigns consecutive indices to keys in the order of their first use."""

    def __missing__(self, key: Hashable) -> int:
        index = self[key] = len(self)
        return index


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values in ascending order."""
    ordered = np.sort(values)
    different = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    result: NDArray[Any] = ordered[different]
    return result


def is_in(values: NDArray[Any], table: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each value occurs in ``table``."""
    if not len(table):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(table)
    result: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return result
