"""Upper bound on PyTorch's reserved memory at times when its counters were not read.

The bound is the lowest of up to three bounds: PyTorch's peak counter for the whole measurement; the reserved memory at
an earlier reading of the counters plus the memory allocated from CUDA until the next reading; and the reserved memory
according to a recording, which contains all allocations and frees of segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from ipygpumem.core.data_classes import dataclass

_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_CLOCK_TOLERANCE = 0.001
"""Tolerance in seconds, because PyTorch derives timestamps from the CPU's time-stamp counter, not the system clock."""
_MAX_DURATION = 0.1
_MAX_DURATION_PER_BYTE = 0.01 / (1 << 30)
"""Longest assumed duration of cudaMalloc: 0.1 s plus 10 ms per GiB, about fifty times its usual duration."""


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Counters of PyTorch's allocator on one device.

    Attributes:
        begin, end: Times before and after the counters were read, in seconds since the start of the measurement.
        reserved: Current reserved memory in bytes.
        allocated, freed: Total size of all segments allocated from and returned to CUDA so far, in bytes.
    """

    begin: float
    end: float
    reserved: int
    allocated: int
    freed: int

    @property
    def origin(self) -> int:
        """Reserved memory in bytes when ``allocated`` and ``freed`` were 0. A reset of the counters changes it."""
        return self.reserved - self.allocated + self.freed


class ReservedMemoryCurve:
    """Reserved memory over time, computed backwards from the end of a recording.

    PyTorch records the allocation of a segment after cudaMalloc has returned, and the free of a segment before calling
    cudaFree, which may wait for the device. Because PyTorch holds the allocator's lock during both calls, cudaMalloc is
    called after the previous event, and cudaFree returns before the next event. Times are in seconds since the Unix
    epoch.

    Args:
        trace: All recorded events of one device.
        at_end: Reserved memory at the end of the recording in bytes.
        since: Start of the recording.
        complete: Whether no events are missing. Otherwise, reserved memory before the first recorded change is unknown.
    """

    def __init__(self, trace: Sequence[dict[str, Any]], at_end: int, *, since: float, complete: bool) -> None:
        self._times = [since]
        self._not_before, self._done = [since], [since]  # earliest start and latest end of each change
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
        self._sizes = list(accumulate(changes, initial=at_end - sum(changes)))
        if not complete:
            self._times[0] = self._times[1] if changes else float("inf")

    def upper_bound(self, begin: float, end: float) -> int | None:
        return max(self._possible_values(begin, end), default=None)

    def at(self, begin: float, end: float) -> int | None:
        """Return the reserved memory in bytes between two times, or None if it is unknown or may have changed."""
        sizes = set(self._possible_values(begin, end))
        return sizes.pop() if len(sizes) == 1 else None

    def _possible_values(self, begin: float, end: float) -> list[int]:
        begin, end = begin - _CLOCK_TOLERANCE, end + _CLOCK_TOLERANCE
        first = bisect_right(self._times, begin) - 1
        if first < 0:
            return []
        last = bisect_right(self._times, end)
        sizes = self._sizes[first:last]
        if first > 0 and self._done[first] >= begin:
            sizes.append(self._sizes[first - 1])
        if last < len(self._times) and self._not_before[last] <= end:
            sizes.append(self._sizes[last])
        return sizes


def reserved_bound(
    peak: int | None,
    readings: Sequence[CounterReading] = (),
    usage: ReservedMemoryCurve | None = None,
    epoch: float = 0.0,
) -> Callable[[float, float], int | None]:
    """Return a function that computes an upper bound on reserved memory between two times.

    The function takes two times in seconds since the start of the measurement, and returns a bound in bytes, or None if
    no bound is known.

    ``peak``: Peak reserved memory of the measurement in bytes; None if unknown.
    ``readings``: Readings of the allocator's counters during the measurement.
    ``usage``: Reserved memory over time according to a recording; None if there is no recording.
    ``epoch``: Start of the measurement in seconds since the Unix epoch.
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
        recorded_bound = None if usage is None else usage.upper_bound(epoch + begin, epoch + end)
        bounds = (peak, recorded_bound, between_readings(begin, end))
        return min((upper for upper in bounds if upper is not None), default=None)

    return bound
