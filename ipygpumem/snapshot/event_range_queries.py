"""Queries about the events between two points in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import OptionError, check_argument
from ipygpumem.core.units import MIB
from ipygpumem.snapshot.model.timeline import Timeline
from ipygpumem.snapshot.queries.live_set import LiveSet
from ipygpumem.snapshot.snapshot_data import SnapshotData, check_event

if TYPE_CHECKING:
    from ipygpumem.snapshot.queries.event_statistics import Churn, CudaCallCounts, RegionRepetition


class EventRangeQueries(SnapshotData):
    """Base class of `Snapshot` with queries about the events in a range.

    Queries with the arguments ``first`` and ``last`` raise `OptionError` if the device has no such event, or if the
    range ends before it starts.
    """

    def leaks(self, first: int = -1, last: int | None = None, device: int | None = None) -> LiveSet:
        """Return the allocations that were made after event ``first`` and are alive after event ``last``.

        By default, these are all recorded allocations that are alive after the last event.
        """
        timeline, last = self._window(first, last, device)
        from ipygpumem.snapshot.queries import event_statistics  # on first use, as below: to save memory

        return LiveSet(self, timeline, last, event_statistics.leaks(timeline, first, last))

    def churn(
        self, first: int = -1, last: int | None = None, device: int | None = None, key: str = "line"
    ) -> tuple[Churn, ...]:
        """Return the number, size and lifetimes of the allocations after event ``first`` up to ``last``, by group.

        ``key`` is the property by which allocations are grouped, a key of `ipygpumem.snapshot.KEYS`.
        """
        timeline, last = self._window(first, last, device)
        from ipygpumem.snapshot.queries import event_statistics

        return event_statistics.churn(self, timeline, first, last, key)

    def short_lived(
        self,
        first: int = -1,
        last: int | None = None,
        device: int | None = None,
        *,
        at_least: int = MIB,
        at_most_us: int = 1000,
    ) -> NDArray[Any]:
        """Return the allocations of at least ``at_least`` bytes that were freed within ``at_most_us`` microseconds.

        Only allocations made after event ``first`` and freed up to event ``last`` are included.

        Returns:
            A structured array of dtype `event_statistics.SHORT_LIVED`, with the largest allocation first.

        Raises:
            OptionError: The events have no timestamps.
        """
        check_argument("at_least", at_least, (int, float, np.number), "a number of bytes")
        check_argument("at_most_us", at_most_us, (int, float, np.number), "a number of microseconds")
        timeline, last = self._window(first, last, device)
        from ipygpumem.snapshot.queries import event_statistics

        return event_statistics.short_lived(timeline, first, last, at_least, at_most_us)

    def device_calls(self, first: int = -1, last: int | None = None, device: int | None = None) -> CudaCallCounts:
        """Count the CUDA calls that allocate, free, map or unmap memory after event ``first`` up to event ``last``."""
        timeline, last = self._window(first, last, device)
        from ipygpumem.snapshot.queries import event_statistics

        return event_statistics.device_calls(timeline, first, last)

    def growth(self, name: str, device: int | None = None) -> tuple[RegionRepetition, ...]:
        """Return the memory growth in each repetition of an annotated region.

        The result is empty if the times of the events or of the regions are unknown.

        Raises:
            OptionError: The device has no region with this name.
        """
        from ipygpumem.snapshot.queries import event_statistics

        return event_statistics.growth(self, self.timeline(device), name)

    def window(self, start_us: int, end_us: int, device: int | None = None) -> tuple[int, int]:
        """Return a tuple ``(first, last)`` of the last event before a time span and the last event in it.

        Raises:
            OptionError: The events have no timestamps, or the end is before the start.
        """
        for name, value in (("start_us", start_us), ("end_us", end_us)):
            check_argument(name, value, (int, float, np.number), "a number of microseconds")
        from ipygpumem.snapshot.queries import event_statistics

        return event_statistics.events_in_span(self.name, self.timeline(device).trace, start_us, end_us)

    def _window(self, first: int, last: int | None, device: int | None) -> tuple[Timeline, int]:
        timeline = self.timeline(device)
        last = len(timeline.trace) - 1 if last is None else last
        first, last = check_event(first, timeline), check_event(last, timeline)
        if first > last:
            raise OptionError(f"the range of events ends before it starts: event {first} to event {last}")
        return timeline, last
