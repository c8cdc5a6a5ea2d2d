"""Upper bound on PyTorch's reserved memory at times at which its counters were not read.

The bound is computed from three sources: PyTorch's peak counter for the whole measurement; pairs of counter readings,
because reserved memory between two readings is at most its value at the first reading plus the memory allocated from
CUDA until the second; and a recording, which contains all allocations and frees of segments.
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
"""In seconds. PyTorch's timestamps are from the CPU's time-stamp counter, ours from the system clock."""
_MAX_DURATION = 0.1
_MAX_DURATION_PER_BYTE = 0.01 / (1 << 30)
"""Longest assumed duration of cudaMalloc: 0.1 s plus 10 ms per GiB, about fifty times its usual duration."""


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Counters of PyTorch's allocator on one device, read between ``begin`` and ``end``.

    ``allocated`` and ``freed`` are the total sizes of segments allocated from CUDA and freed so far, in bytes. Times
    are in seconds since the measurement began.
    """

    begin: float
    end: float
    reserved: int
    allocated: int
    freed: int

    @property
    def origin(self) -> int:
        """Reserved memory when both totals were 0. The value changes if the program resets the totals."""
        return self.reserved - self.allocated + self.freed


class ReservedHistory:
    """Reserved memory over time, computed backwards from the end of a recording.

    PyTorch records a segment after cudaMalloc has returned, and before it calls cudaFree, which may wait for the
    device. Because PyTorch holds the allocator's lock, an allocation begins after the previous event, and a free ends
    before the next event. Times are in seconds since the Unix epoch.

    ``trace`` contains all events of one device, ``at_end`` is the reserved memory at the end in bytes, and ``since`` is
    the start of the recording. Unless it is ``complete``, reserved memory before the first change is unknown.
    """

    def __init__(self, trace: Sequence[dict[str, Any]], at_end: int, *, since: float, complete: bool) -> None:
        self._times = [since]
        self._not_before, self._done = [since], [since]  # earliest begin and latest end of each change
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
        """Return the highest possible reserved memory between two times; None if unknown."""
        return max(self._possible_values(begin, end), default=None)

    def at(self, begin: float, end: float) -> int | None:
        """Return the reserved memory between two times; None if it is unknown or may have changed."""
        levels = set(self._possible_values(begin, end))
        return levels.pop() if len(levels) == 1 else None

    def _possible_values(self, begin: float, end: float) -> list[int]:
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
    """Return a function that computes the upper bound on reserved memory between two times, or None if unknown.

    All times are in seconds since ``epoch``, except those in ``levels``. ``peak`` is the peak of the whole measurement,
    and ``readings`` includes the readings at both ends.
    """
    readings = sorted(readings, key=lambda reading: reading.begin)
    times = [reading.begin for reading in readings]

    def between_readings(begin: float, end: float) -> int | None:
        last = bisect_right(times, end)
        first = bisect_right(times, begin) - 1
        while first >= 0 and readings[first].end >= begin:  # may have been read after ``begin``
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
