"""Which segment held an address at an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["holder"]


def holder(stays: tuple[Ints, Ints, Ints, Ints], address: Ints, event: Ints) -> Ints:
    """For each address the number of the segment that held it right after an event; -1 where there was none.

    Args:
        stays: Address, size, first event and the event that gave it back, of each segment. Those at one address follow
            one another.
        address: int64.
        event: int64, as many.
    """
    begin, size, start, end = stays
    found = np.full(len(address), -1, np.int64)
    if not len(begin):
        return found
    order = np.lexsort((start, begin))
    bases, first = np.unique(begin[order], return_index=True)
    reach = np.maximum.accumulate(np.maximum.reduceat((begin + size)[order], first))
    last = np.append(first[1:], len(order))
    # a base and an event as one number: the stays of a base are a stretch in which to look for the event
    wide = int(max(start.max(), event.max(initial=-1))) + 2
    keys = np.repeat(np.arange(len(bases)), last - first) * wide + start[order] + 1
    open_ = np.arange(len(address))
    base = np.searchsorted(bases, address, side="right") - 1
    while len(open_):
        near = base[open_]
        keep = (near >= 0) & (address[open_] < reach[near])
        open_, near = open_[keep], near[keep]
        place = np.searchsorted(keys, near * wide + event[open_] + 1, side="right") - 1
        stay = order[np.maximum(place, 0)]
        inside = (place >= first[near]) & (event[open_] < end[stay]) & (address[open_] < (begin + size)[stay])
        found[open_[inside]] = stay[inside]
        open_ = open_[~inside]
        base[open_] -= 1  # the one below may reach further
    return found
