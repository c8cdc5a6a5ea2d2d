"""Marks of a recording as events of its snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.errors import RecordingError
from ipygpumem.snapshot.model.trace import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.measurement.event_position import Mark
    from ipygpumem.measurement.recorder import Recorder
    from ipygpumem.snapshot.model.timeline import Timeline

__all__ = ["Places"]


class Places:
    """Finds the event before each mark, on one device.

    Raises:
        RecordingError: The counts and the events do not fit: somebody reset the counts, or events are missing.
    """

    def __init__(self, timeline: Timeline, recorder: Recorder) -> None:
        device = timeline.device
        trace = timeline.trace
        counted = trace.events(Action.ALLOC, Action.FREE_REQUESTED)
        # a free completes at once, unless a stream still uses the block: then the next event is another
        after = np.minimum(counted + 1, len(trace) - 1)
        completed = (
            (trace.action[counted] == Action.FREE_REQUESTED)
            & (trace.action[after] == Action.FREE_COMPLETED)
            & (trace.address[after] == trace.address[counted])
        )
        self._last = np.where(completed, after, counted)
        self._device = device
        self._first = recorder.ended.get(device, 0) - len(counted)
        begun = recorder.begun.get(device, 0)
        # a trace that is somebody else's may begin a little before us: it is cut by its times
        if self._first != begun if recorder.history.own else self._first > begun:
            raise RecordingError(
                f"cuda:{device}: the allocator's counts do not fit the recorded events: they were reset meanwhile, or "
                "another thread allocated at the very end"
            )

    def event(self, mark: Mark) -> int:
        """The last event before a mark; -1 is the moment before the first."""
        ordinal = min(mark.get(self._device, 0) - self._first, len(self._last))
        return int(self._last[ordinal - 1]) if ordinal > 0 else -1

    def events(self, marks: Sequence[Mark]) -> NDArray[np.int64]:
        """The last event before each of many marks."""
        return np.fromiter((self.event(mark) for mark in marks), np.int64, len(marks))
