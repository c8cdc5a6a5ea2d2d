"""The mapped address ranges of expandable segments at any event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Edges = tuple[Ints, Ints, Ints]

__all__ = ["SEGMENT", "MappedRanges", "edges_of"]

SEGMENT = np.dtype(
    [
        ("address", "i8"),
        ("size", "i8"),
        ("stream", "i8"),
        ("stack", "i4"),
        ("pool", "i4"),
        ("small", "i1"),
        ("expandable", "?"),
    ]
)
"""Columns of ``AllocatorState.segments``. ``stack``, ``pool`` and ``small`` (small pool) are -1 if unknown."""

_MIN_STEP = 8192  # map and unmap events between two checkpoints
_MAX_CHECKPOINTS = 8  # each may be as long as all events together


def edges_of(stream: Ints, begin: Ints, end: Ints, change: Ints) -> Edges:
    """The sum of ranges, as the addresses of each stream at which it changes.

    Returns:
        Stream, address and change, ordered by stream and address. No change is 0.
    """
    return _sum(np.concatenate([stream, stream]), np.concatenate([begin, end]), np.concatenate([change, -change]))


def _sum(stream: Ints, address: Ints, change: Ints) -> Edges:
    order = np.lexsort((address, stream))
    stream, address, change = stream[order], address[order], change[order]
    if not len(stream):
        return stream, address, change
    first = np.flatnonzero(np.append(True, (stream[1:] != stream[:-1]) | (address[1:] != address[:-1])))
    total = np.add.reduceat(change, first)
    rows = first[total != 0]
    return stream[rows], address[rows], total[total != 0]


class MappedRanges:
    """The ranges mapped at the end, from which earlier ones are found by undoing map and unmap events."""

    def __init__(self, last: Edges, stream: Ints, begin: Ints, end: Ints, change: Ints) -> None:
        self._events = (stream, begin, end, change)
        self._step = max(_MIN_STEP, -(-len(stream) // _MAX_CHECKPOINTS))
        self._checkpoints = {len(stream): last}
        count = len(stream)
        while count > 0:
            before = (count - 1) // self._step * self._step
            self._checkpoints[before] = self._undo(count, before)
            count = before

    def _undo(self, count: int, before: int) -> Edges:
        """The edges after ``before`` events, from the checkpoint after ``count``."""
        stream, address, change = self._checkpoints[count]
        undone = edges_of(*(column[before:count] for column in self._events))
        return _sum(
            np.concatenate([stream, undone[0]]),
            np.concatenate([address, undone[1]]),
            np.concatenate([change, -undone[2]]),
        )

    def after(self, count: int) -> NDArray[Any]:
        """`SEGMENT` rows of the ranges mapped after ``count`` events, by stream and address; other columns are -1."""
        checkpoint = min(-(-count // self._step) * self._step, len(self._events[0]))
        edges = self._checkpoints[count] if count in self._checkpoints else self._undo(checkpoint, count)
        stream, address, change = edges
        # the changes of each stream add up to 0, so one cumulative sum serves all streams
        mapped = np.cumsum(change) > 0
        rows = np.flatnonzero(np.diff(np.concatenate([[False], mapped, [False]])))
        ranges = np.zeros(len(rows) // 2, SEGMENT)
        ranges["address"] = address[rows[::2]]
        ranges["size"] = address[rows[1::2]] - address[rows[::2]]
        ranges["stream"] = stream[rows[::2]]
        ranges["expandable"] = True
        ranges["stack"] = ranges["pool"] = ranges["small"] = -1
        return ranges
