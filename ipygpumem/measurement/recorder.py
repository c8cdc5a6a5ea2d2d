"""A recording with what it will need to be saved: the cells that ran meanwhile, and the reading at its start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import RecordingError, first_line
from ipygpumem.core.report import RecordingFacts
from ipygpumem.measurement.allocation_history import History, HistoryOptions
from ipygpumem.measurement.curves import curves, steps_of
from ipygpumem.measurement.event_position import Mark, mark
from ipygpumem.measurement.recording_file import write
from ipygpumem.measurement.recording_keys import CellFacts, add_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ipygpumem.core.reading import Reading
    from ipygpumem.measurement.runtime import Runtime
    from ipygpumem.measurement.sampler import SampleWindow

__all__ = ["Recorder"]


class Recorder:
    """One recording from start to stop, saved as often as one likes.

    Attributes:
        keep: Whether `save` leaves the snapshot in `kept`, for somebody who reads it at once.
        kept: The snapshot that was taken last, with our own keys; whoever reads it puts None there.
        begun: Where the events of each device stood when the recording began.
        ended: Where they stood when that snapshot was taken.
        windows: Samples of the cards, closed, taken while it was on.

    Raises:
        RecordingError: Nothing can be recorded here.
        OptionError: An option that this torch does not have.
    """

    def __init__(self, runtime: Runtime, options: HistoryOptions | None = None) -> None:
        self._runtime = runtime
        self.history = History(runtime.active_recording, options or HistoryOptions())
        self.cells: list[CellFacts] = []
        self.keep = False
        self.kept: dict[str, Any] | None = None
        self.begun: Mark = {}
        self.ended: Mark = {}
        self.windows: list[SampleWindow] = []
        self._before: Reading | None = None

    def start(self, before: Reading | None = None) -> None:
        """Switch recording on; ``before`` is the reading at this moment, where one was taken already."""
        self._before = before or self._runtime.monitor.read()
        self.history.start()
        self.begun = mark()

    def save(
        self,
        path: Path | None,
        *,
        sources: Mapping[str, str],
        numbers: Mapping[str, int] | None = None,
        cell: CellFacts | None = None,
        after: Reading | None = None,
    ) -> RecordingFacts:
        """Write what was recorded so far. A failure is told in the facts: the code that was measured must not suffer.

        Without a path nothing is written, and the snapshot is in `kept` alone.

        ``sources``: text of notebook cells by file name, ``numbers``: their In numbers. ``cell``: the cell that is
        ending, not yet in `cells`.
        """
        cells = [*self.cells, *([cell] if cell else [])]
        try:
            return self._save(path, sources, numbers or {}, cells, after or self._runtime.monitor.read())
        except RecordingError as error:
            why = str(error)
        except Exception as error:
            why = f"the snapshot was not taken: {first_line(error)}"
        return RecordingFacts(path=None, own=self.history.own, error=why)

    def _save(
        self,
        path: Path | None,
        sources: Mapping[str, str],
        numbers: Mapping[str, int],
        cells: list[CellFacts],
        after: Reading,
    ) -> RecordingFacts:
        history = self.history
        ended_us = time.time_ns() // 1000
        self.ended = mark()
        snapshot = history.take()
        dropped = history.dropped(snapshot)
        before = self._before or after
        if self.windows:
            steps_of(snapshot, self.windows, history.started_us, dropped)
        add_keys(
            snapshot,
            history,
            ended_us=ended_us,
            dropped=dropped,
            cells=cells,
            before=before,
            after=after,
            curves=curves(self.windows, before.devices, after.devices),
            sources=sources,
            numbers=numbers,
            devices=self._devices(),
        )
        events = sum(len(trace) for trace in snapshot.get("device_traces", ()))
        if self.keep or path is None:
            self.kept = snapshot
        size = 0 if path is None else write(path, snapshot)
        lost = None if None in dropped else sum(count or 0 for count in dropped)
        name = None if path is None else str(path)
        return RecordingFacts(name, size, events, lost, own=history.own, error=history.lost)

    def _devices(self) -> list[dict[str, Any]]:
        devices = self._runtime.monitor.devices.values()
        return [
            {"index": device.index, "name": device.label, "uuid": device.uuid, "total": device.total}
            for device in devices
        ]

    def stop(self) -> None:
        """Switch recording off, if it is still ours."""
        self.history.stop()
