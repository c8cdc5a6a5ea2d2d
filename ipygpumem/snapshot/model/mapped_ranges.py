"""Expandable segments: which ranges of addresses are mapped at any event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Sums = tuple[Ints, Ints, Ints]

__all__ = ["SEGMENT", "Edges", "sums"]

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
"""Columns of ``State.segments``. ``stack``, ``pool`` and ``small`` (of the small pool) are -1 where not known."""

_EVERY = 8192  # moves between two checkpoints, at least
_MOST = 8  # checkpoints: each may be as long as all moves together


def sums(stream: Ints, begin: Ints, end: Ints, change: Ints) -> Sums:
    """What ranges add up to: at each place of each stream where it changes, by how much.

    Returns:
        Stream, address and change, by stream and address; none of the changes is 0.
    """
    return _added(np.concatenate([stream, stream]), np.concatenate([begin, end]), np.concatenate([change, -change]))


def _added(stream: Ints, place: Ints, change: Ints) -> Sums:
    order = np.lexsort((place, stream))
    stream, place, change = stream[order], place[order], change[order]
    if not len(stream):
        return stream, place, change
    new = np.flatnonzero(np.append(True, (stream[1:] != stream[:-1]) | (place[1:] != place[:-1])))
    total = np.add.reduceat(change, new)
    some = new[total != 0]
    return stream[some], place[some], total[total != 0]


class Edges:
    """The ranges at the end, and the moves that led there, taken back as far as is asked."""

    def __init__(self, last: Sums, stream: Ints, begin: Ints, end: Ints, change: Ints) -> None:
        self._moves = (stream, begin, end, change)
        self._step = max(_EVERY, -(-len(stream) // _MOST))
        self._saved = {len(stream): last}
        at = len(stream)
        while at > 0:
            before = (at - 1) // self._step * self._step
            self._saved[before] = self._back(at, before)
            at = before

    def _back(self, at: int, before: int) -> Sums:
        """What is saved for a number of moves, without the last of these."""
        stream, place, change = self._saved[at]
        undone = sums(*(column[before:at] for column in self._moves))
        return _added(
            np.concatenate([stream, undone[0]]),
            np.concatenate([place, undone[1]]),
            np.concatenate([change, -undone[2]]),
        )

    def ranges(self, count: int) -> NDArray[Any]:
        """`SEGMENT` rows of what is mapped after so many moves, by stream and address; only these are known."""
        at = min(-(-count // self._step) * self._step, len(self._moves[0]))
        stream, place, change = self._saved[count] if count in self._saved else self._back(at, count)
        # the changes of each stream add up to 0: the next one begins anew
        covered = np.cumsum(change) > 0
        edges = np.flatnonzero(np.diff(np.concatenate([[False], covered, [False]])))
        ranges = np.zeros(len(edges) // 2, SEGMENT)
        ranges["address"] = place[edges[::2]]
        ranges["size"] = place[edges[1::2]] - place[edges[::2]]
        ranges["stream"] = stream[edges[::2]]
        ranges["expandable"] = True
        ranges["stack"] = ranges["pool"] = ranges["small"] = -1
        return ranges
