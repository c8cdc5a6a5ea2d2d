"""The most that PyTorch can have had reserved at a time nobody read its counters at.

Three things are known afterwards: the highest of the whole measurement, by PyTorch's own peak counter; readings in
between, each with the bytes taken from CUDA so far, so that between two of them nothing can have been higher than the
first plus what was taken until the second; and, where history was recorded, every segment that came or went.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Anchor", "MostReserved", "Steps", "segment_moves", "segment_steps"]

_CHANGES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_SLACK = 0.001
"""Times in PyTorch's history come from the processor's counter, ours from the system's clock."""


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


class Steps:
    """Reserved bytes after each time, as a recording has them; unknown before the first time."""

    def __init__(self, times: Sequence[float], levels: Sequence[int]) -> None:
        self._times, self._levels = times, levels

    def most(self, begin: float, end: float) -> int | None:
        """The highest between two times; None if that reaches before the first."""
        first = bisect_right(self._times, begin - _SLACK) - 1
        if first < 0:
            return None
        last = bisect_right(self._times, end + _SLACK)
        return max(self._levels[first:last])

    def at(self, begin: float, end: float) -> int | None:
        """The level, if it was one and the same between two times."""
        first = bisect_right(self._times, begin - _SLACK) - 1
        if first < 0 or bisect_right(self._times, end + _SLACK) - 1 != first:
            return None
        return self._levels[first]


def segment_moves(trace: Iterable[dict[str, Any]]) -> list[tuple[float, int]]:
    """Every segment that came or went in a recording: epoch seconds, and bytes more."""
    moves = [
        (event["time_us"] / 1e6, _CHANGES[event["action"]] * event["size"])
        for event in trace
        if event.get("action") in _CHANGES and event.get("time_us")
    ]
    moves.sort(key=lambda move: move[0])
    return moves


def segment_steps(
    moves: Sequence[tuple[float, int]], at_end: int, *, since: float, origin: float, complete: bool
) -> Steps:
    """Reserved bytes over time, reckoned back from the end of a recording.

    ``origin``: the epoch second that the result counts from. ``since``: when the recording began, in epoch seconds;
    from there on nothing is missing if the recording is ``complete``, else from its first move.
    """
    first = at_end - sum(change for _, change in moves)
    times = [since - origin if complete else moves[0][0] - origin if moves else float("inf")]
    levels = [first]
    for time, change in moves:
        times.append(max(time - origin, times[-1]))
        levels.append(levels[-1] + change)
    return Steps(times, levels)


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
