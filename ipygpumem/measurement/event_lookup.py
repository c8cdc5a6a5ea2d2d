"""Lookup of the events in a snapshot that precede positions stored during the recording."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import RecordingError
from ipygpumem.measurement.event_position import EventPosition
from ipygpumem.measurement.recorder import Recorder
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.timeline import Timeline


class EventLookup:
    """Lookup of the last event before a position, for the events of one device.

    The constructor raises `RecordingError` if the allocator's counters do not match the recorded events, of which the
    first may be missing if ``complete`` is False.
    """

    def __init__(self, timeline: Timeline, recorder: Recorder, *, complete: bool = True) -> None:
        device, trace = timeline.device, timeline.trace
        counted = trace.events(Action.ALLOC, Action.FREE_REQUESTED)
        # a free request is followed by its completion, unless a stream still uses the block
        following = np.minimum(counted + 1, len(trace) - 1)
        completed = (
            (trace.action[counted] == Action.FREE_REQUESTED)
            & (trace.action[following] == Action.FREE_COMPLETED)
            & (trace.address[following] == trace.address[counted])
        )
        self._last = np.where(completed, following, counted)
        self._device = device
        self._first = recorder.end_position.get(device, 0) - len(counted)
        begin = recorder.begin_position.get(device, 0)
        # events from the program's recording are selected by time, and the first may be slightly earlier
        wrong = self._first != begin if recorder.history.own else self._first > begin
        if wrong if complete else self._first < begin:
            raise RecordingError(
                f"cuda:{device}: the allocator's counters do not match the recorded events because the program reset "
                "the counters, or because another thread allocated memory at the end of the recording"
            )

    def contains(self, position: EventPosition) -> bool:
        """Return whether the events since a position are recorded."""
        return position.get(self._device, 0) >= self._first

    def event(self, position: EventPosition) -> int:
        """Return the index of the last event before a position, or -1 if there is none."""
        count = min(position.get(self._device, 0) - self._first, len(self._last))
        return int(self._last[count - 1]) if count > 0 else -1

    def events(self, positions: Sequence[EventPosition]) -> NDArray[np.int64]:
        """Return the index of the last event before each position, or -1 if there is none."""
        return np.fromiter((self.event(position) for position in positions), np.int64, len(positions))
