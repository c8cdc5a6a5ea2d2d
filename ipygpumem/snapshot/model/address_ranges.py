"""Unions and overlaps of address ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Ints


def union(addresses: Ints, sizes: Ints) -> Ints:
    """Return the union of address ranges as an array of shape (ranges, 2): start and end, ordered by address."""
    order = np.argsort(addresses, kind="stable")
    start, end = addresses[order], (addresses + sizes)[order]
    if not len(start):
        return np.zeros((0, 2), np.int64)
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    last = np.append(first[1:], len(start)) - 1
    return np.stack([start[first], reach[last]], axis=1)


def overlap(ranges: Ints, segments: Any) -> int:
    """Return how many bytes of the segments are inside the ranges, which are a result of `union`."""
    if not len(ranges):
        return 0
    length = np.append(0, np.cumsum(ranges[:, 1] - ranges[:, 0]))

    def covered(address: Ints) -> Ints:
        place = np.searchsorted(ranges[:, 0], address, side="right")
        beyond = np.maximum(np.append(ranges[:, 1], 0)[place - 1] - address, 0)
        return np.where(place > 0, length[place] - beyond, 0)

    total: int = int((covered(segments["address"] + segments["size"]) - covered(segments["address"])).sum())
    return total
