"""The most that PyTorch can have had reserved at a time nobody read its counters at.

Three things are known afterwards: the highest of the whole measurement, by PyTorch's own peak counter; readings in
between, each with the bytes taken from CUDA so far, so that between two of them nothing can have been higher than the
first plus what was taken until the second; and, where history was recorded, every segment that came or went.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Anchor", "MostReserved", "Move", "Steps", "segment_moves", "segment_steps"]

_CHANGES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_SLACK = 0.001
"""Times in PyTorch's history come from the processor's counter, ours from the system's clock."""
_LONGEST = 0.1
_LONGEST_BYTE = 0.01 / (1 << 30)
"""No cudaMalloc lasts longer: a tenth of a second, and 10 ms for each GiB (some fifty times what it takes)."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """PyTorch's counters of one device, read between ``begin`` and ``end`` (seconds since the measurement began).

    ``reserved`` now; ``taken`` and ``given``: everything that was ever taken from CUDA and given back. Bytes.
    """

    begin: float
    end: float
    reserved: int
    taken: int
    given: int

    @property
    def origin(self) -> int:
        """What was reserved when the sums began: another one after somebody has reset them."""
        return self.reserved - self.taken + self.given


@dataclass(frozen=True, slots=True)
class Move:
    """A segment that came or went, ``change`` bytes more; by ``begin`` it had not begun to, by ``end`` it was over.

    PyTorch notes a segment when cudaMalloc has returned, and before it calls cudaFree, which may wait for the device:
    both keep the allocator's lock. So an allocation began after the event before it, and a free ended before the next.
    """

    time: float
    change: int
    begin: float
    end: float


class Steps:
    """Reserved bytes after each move, as a recording has them; unknown before the first time.

    Args:
        start: Since when nothing is missing, in seconds since the measurement began.
        first: Reserved bytes then.
        moves: In the order of their times, which count as ``start`` does.
    """

    def __init__(self, start: float, first: int, moves: Sequence[Move]) -> None:
        self._moves = moves
        self._times = [start, *(move.time for move in moves)]
        self._levels = list(accumulate((move.change for move in moves), initial=first))

    def most(self, begin: float, end: float) -> int | None:
        """The highest that can have been between two times; None if that reaches before the first."""
        levels = self._near(begin, end)
        return max(levels) if levels else None

    def at(self, begin: float, end: float) -> int | None:
        """The level, if it can only have been one and the same between two times."""
        levels = set(self._near(begin, end))
        return levels.pop() if len(levels) == 1 else None

    def _near(self, begin: float, end: float) -> list[int]:
        """Every level that can have been between two times."""
        begin, end = begin - _SLACK, end + _SLACK
        first = bisect_right(self._times, begin) - 1
        if first < 0:
            return []
        last = bisect_right(self._times, end)
        levels = self._levels[first:last]
        if first > 0 and self._moves[first - 1].end >= begin:
            levels.append(self._levels[first - 1])
        if last < len(self._times) and self._moves[last - 1].begin <= end:
            levels.append(self._levels[last])
        return levels


def segment_moves(trace: Sequence[dict[str, Any]]) -> list[Move]:
    """Every segment that came or went in a recording of one device; times since 1970."""
    places = [place for place, event in enumerate(trace) if event.get("action") in _CHANGES]
    moves: list[Move] = []
    for place in places:
        event = trace[place]
        time, size = event.get("time_us", 0) / 1e6, event["size"]
        if moves:
            time = max(time, moves[-1].time)
        before = trace[place - 1].get("time_us", 0) / 1e6 if place else 0.0
        after = trace[place + 1].get("time_us", 0) / 1e6 if place + 1 < len(trace) else float("inf")
        if _CHANGES[event["action"]] > 0:
            moves.append(Move(time, size, min(max(before, time - _LONGEST - size * _LONGEST_BYTE), time), time))
        else:
            moves.append(Move(time, -size, time, max(after, time)))
    return moves


def segment_steps(moves: Sequence[Move], at_end: int, *, since: float, origin: float, complete: bool) -> Steps:
    """Reserved bytes over time, reckoned back from the end of a recording.

    ``origin``: the epoch second that the result counts from. ``since``: when the recording began, in epoch seconds;
    from there on nothing is missing if the recording is ``complete``, else from its first move.
    """
    first = at_end - sum(move.change for move in moves)
    start = since if complete else moves[0].time if moves else float("inf")
    shifted = [Move(one.time - origin, one.change, one.begin - origin, one.end - origin) for one in moves]
    return Steps(start - origin, first, shifted)


class MostReserved:
    """The bound of one device.

    Args:
        highest: Of the whole measurement; None where the counters could not be read.
        anchors: Readings from the first to the last, the measurement's own ends among them.
        steps: Where history was recorded.
    """

    def __init__(self, highest: int | None, anchors: Sequence[Anchor] = (), steps: Steps | None = None) -> None:
        self._highest = highest
        self._anchors = sorted(anchors, key=lambda one: one.begin)
        self._begins = [one.begin for one in self._anchors]
        self._steps = steps

    def __call__(self, begin: float, end: float) -> int | None:
        """The most that can have been reserved between two times."""
        found = [self._highest, None if self._steps is None else self._steps.most(begin, end)]
        found.append(self._between(begin, end))
        known = [one for one in found if one is not None]
        return min(known) if known else None

    def _between(self, begin: float, end: float) -> int | None:
        anchors = self._anchors
        last = bisect_right(self._begins, end)
        first = bisect_right(self._begins, begin) - 1
        while first >= 0 and anchors[first].end >= begin:  # a reading that was going on: either side of it may be meant
            first -= 1
        if first < 0 or last >= len(anchors):
            return None
        pairs = list(zip(anchors[first:last], anchors[first + 1 : last + 1], strict=True))
        if any(one.origin != other.origin for one, other in pairs):
            return None
        return max((one.reserved + other.taken - one.taken for one, other in pairs), default=None)
