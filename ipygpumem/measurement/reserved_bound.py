"""Upper bound of PyTorch's reserved memory at times at which its counters were not read.

Three sources limit it: PyTorch's peak counter for the whole measurement; readings of the counters, each with the bytes
allocated from CUDA so far, because between two readings no more can have been reserved than at the first one plus what
was allocated until the second; and a recording, which contains all allocations and frees of segments.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_CLOCK_TOLERANCE = 0.001
"""In seconds. Times in PyTorch's history are from the CPU's time-stamp counter, ours from the system clock."""
_MAX_DURATION = 0.1
_MAX_DURATION_PER_BYTE = 0.01 / (1 << 30)
"""Longest duration of a cudaMalloc: 0.1 s, and 10 ms for each GiB, which is about fifty times what it usually takes."""


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Counters of PyTorch's allocator on one device, read between ``begin`` and ``end``.

    ``allocated`` and ``freed`` are the totals of memory allocated from CUDA and freed so far, in bytes. Times are in
    seconds since the measurement began.
    """

    begin: float
    end: float
    reserved: int
    allocated: int
    freed: int

    @property
    def origin(self) -> int:
        """Reserved memory when both totals were 0. It changes if the program resets them."""
        return self.reserved - self.allocated + self.freed


class ReservedHistory:
    """Reserved memory over time, computed backwards from the end of a recording. Times are in seconds since 1970.

    PyTorch records a segment after cudaMalloc has returned, and before it calls cudaFree, which may wait for the
    device. As it holds the allocator's lock, an allocation began after the previous event, and a free ended before the
    next one.

    ``trace`` has all events of one device, ``at_end`` is the reserved memory at the end in bytes, and ``since`` the
    start of the recording. Unless it is ``complete``, the levels before the first change are unknown.
    """

    def __init__(self, trace: Sequence[dict[str, Any]], at_end: int, *, since: float, complete: bool) -> None:
        self._times = [since]
        self._not_before, self._done = [since], [since]  # when each change had not begun, and when it was complete
        changes: list[int] = []
        for i, event in enumerate(trace):
            sign = _SIGNS.get(event.get("action", ""))
            if sign is None:
                continue
            time, size = event.get("time_us", 0) / 1e6, event["size"]
            if changes:
                time = max(time, self._times[-1])
            begin = end = time
            if sign > 0:
                previous = trace[i - 1].get("time_us", 0) / 1e6 if i else 0.0
                begin = min(max(previous, time - _MAX_DURATION - size * _MAX_DURATION_PER_BYTE), time)
            else:
                end = max(time, trace[i + 1].get("time_us", 0) / 1e6 if i + 1 < len(trace) else float("inf"))
            changes.append(sign * size)
            self._times.append(time)
            self._not_before.append(begin)
            self._done.append(end)
        self._levels = list(accumulate(changes, initial=at_end - sum(changes)))
        if not complete:
            self._times[0] = self._times[1] if changes else float("inf")

    def upper_bound(self, begin: float, end: float) -> int | None:
        """Return the highest possible level between two times; None if it is unknown there."""
        return max(self._possible_levels(begin, end), default=None)

    def at(self, begin: float, end: float) -> int | None:
        """Return the level between two times; None if it is unknown or may have changed."""
        levels = set(self._possible_levels(begin, end))
        return levels.pop() if len(levels) == 1 else None

    def _possible_levels(self, begin: float, end: float) -> list[int]:
        begin, end = begin - _CLOCK_TOLERANCE, end + _CLOCK_TOLERANCE
        first = bisect_right(self._times, begin) - 1
        if first < 0:
            return []
        last = bisect_right(self._times, end)
        levels = self._levels[first:last]
        if first > 0 and self._done[first] >= begin:
            levels.append(self._levels[first - 1])
        if last < len(self._times) and self._not_before[last] <= end:
            levels.append(self._levels[last])
        return levels


def reserved_bound(
    peak: int | None, readings: Sequence[CounterReading] = (), levels: ReservedHistory | None = None, epoch: float = 0.0
) -> Callable[[float, float], int | None]:
    """Return a function that returns the upper bound of reserved memory between two times in bytes; None if unknown.

    All times are in seconds since ``epoch``, except those of ``levels``. ``peak`` is that of the whole measurement, and
    ``readings`` include those at both of its ends.
    """
    readings = sorted(readings, key=lambda reading: reading.begin)
    times = [reading.begin for reading in readings]

    def between_readings(begin: float, end: float) -> int | None:
        last = bisect_right(times, end)
        first = bisect_right(times, begin) - 1
        while first >= 0 and readings[first].end >= begin:  # not known to have been read before this time
            first -= 1
        if first < 0 or last >= len(readings):
            return None
        pairs = list(zip(readings[first:last], readings[first + 1 : last + 1], strict=True))
        if any(before.origin != after.origin for before, after in pairs):
            return None
        return max((before.reserved + after.allocated - before.allocated for before, after in pairs), default=None)

    def bound(begin: float, end: float) -> int | None:
        recorded = None if levels is None else levels.upper_bound(epoch + begin, epoch + end)
        bounds = (peak, recorded, between_readings(begin, end))
        return min((upper for upper in bounds if upper is not None), default=None)

    return bound
