"""Finds the segment that contained an address at an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["find_segment"]


def find_segment(segments: tuple[Ints, Ints, Ints, Ints], address: Ints, event: Ints) -> Ints:
    """For each address the number of the segment that contained it right after an event; -1 if there was none.

    Args:
        segments: Address, size, first event and last event (excluded) of each segment. Segments at the same address do
            not overlap in time.
        address: int64.
        event: int64, as many.
    """
    begin, size, start, end = segments
    result = np.full(len(address), -1, np.int64)
    if not len(begin):
        return result
    order = np.lexsort((start, begin))
    bases, first = np.unique(begin[order], return_index=True)
    reach = np.maximum.accumulate(np.maximum.reduceat((begin + size)[order], first))
    last = np.append(first[1:], len(order))
    # base and event combined into one number: the segments at a base form a range in which to search for the event
    factor = int(max(start.max(), event.max(initial=-1))) + 2
    keys = np.repeat(np.arange(len(bases)), last - first) * factor + start[order] + 1
    open_rows = np.arange(len(address))
    base = np.searchsorted(bases, address, side="right") - 1
    while len(open_rows):
        nearest = base[open_rows]
        reachable = (nearest >= 0) & (address[open_rows] < reach[nearest])
        open_rows, nearest = open_rows[reachable], nearest[reachable]
        place = np.searchsorted(keys, nearest * factor + event[open_rows] + 1, side="right") - 1
        segment = order[np.maximum(place, 0)]
        inside = (place >= first[nearest]) & (event[open_rows] < end[segment])
        inside &= address[open_rows] < (begin + size)[segment]
        result[open_rows[inside]] = segment[inside]
        open_rows = open_rows[~inside]
        base[open_rows] -= 1  # a larger segment may start at a lower address
    return result
