"""A recording of allocation history with what is needed to save it: cells, readings and samples."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import RecordingError, first_line
from ipygpumem.core.report import RecordingFacts
from ipygpumem.measurement.allocation_history import History, HistoryOptions
from ipygpumem.measurement.curves import add_reserved_levels, sampled_curves
from ipygpumem.measurement.event_position import EventPosition, event_position
from ipygpumem.measurement.recording_file import write_snapshot
from ipygpumem.measurement.recording_keys import CellFacts, add_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ipygpumem.core.reading import Reading
    from ipygpumem.measurement.runtime import Runtime
    from ipygpumem.measurement.sampler import SampleWindow

__all__ = ["Recorder"]


class Recorder:
    """One recording from `start` to `stop`, which can be saved several times.

    Attributes:
        keep_snapshot: Whether `save` leaves the snapshot in `snapshot`, for collectors that read it.
        snapshot: The last snapshot with our own keys. The reader sets it to None, which frees its memory.
        begin_position: Position in the allocation events at the start.
        end_position: Position in the allocation events of that snapshot.
        windows: Samples of device memory during the recording.

    Raises:
        RecordingError: History cannot be recorded.
        OptionError: An option that this torch does not have.
    """

    def __init__(self, runtime: Runtime, options: HistoryOptions | None = None) -> None:
        self._runtime = runtime
        self.history = History(runtime.active_recording, options or HistoryOptions())
        self.cells: list[CellFacts] = []
        self.keep_snapshot = False
        self.snapshot: dict[str, Any] | None = None
        self.begin_position: EventPosition = {}
        self.end_position: EventPosition = {}
        self.windows: list[SampleWindow] = []
        self._before: Reading | None = None

    def start(self, before: Reading | None = None) -> None:
        """Switch recording on; ``before`` is the current reading, if it is available."""
        self._before = before or self._runtime.monitor.read()
        self.history.start()
        self.begin_position = event_position()

    def save(
        self,
        path: Path | None,
        *,
        sources: Mapping[str, str],
        numbers: Mapping[str, int] | None = None,
        cell: CellFacts | None = None,
        after: Reading | None = None,
    ) -> RecordingFacts:
        """Save what was recorded so far. A failure is reported in the result, and does not affect the measured code.

        Args:
            path: Where to save it; None leaves it in `snapshot` only.
            sources: Text of notebook cells by file name.
            numbers: In numbers of notebook cells by file name.
            cell: The cell that is ending, which is not yet in `cells`.
            after: The current reading, if it is available.
        """
        cells = [*self.cells, *([cell] if cell else [])]
        try:
            return self._save(path, sources, numbers or {}, cells, after or self._runtime.monitor.read())
        except RecordingError as error:
            problem = str(error)
        except Exception as error:
            problem = f"the snapshot was not taken: {first_line(error)}"
        return RecordingFacts(path=None, own=self.history.own, error=problem)

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
        self.end_position = event_position()
        snapshot = history.take()
        dropped = history.dropped(snapshot)
        before = self._before or after
        if self.windows:
            add_reserved_levels(snapshot, self.windows, history.started_us, dropped)
        add_keys(
            snapshot,
            history,
            ended_us=ended_us,
            dropped=dropped,
            cells=cells,
            before=before,
            after=after,
            curves=sampled_curves(self.windows, before.devices, after.devices),
            sources=sources,
            numbers=numbers,
            devices=[
                {"index": device.index, "name": device.label, "uuid": device.uuid, "total": device.total}
                for device in self._runtime.monitor.devices.values()
            ],
        )
        events = sum(len(trace) for trace in snapshot.get("device_traces", ()))
        if self.keep_snapshot or path is None:
            self.snapshot = snapshot
        size = 0 if path is None else write_snapshot(path, snapshot)
        all_dropped = None if None in dropped else sum(count or 0 for count in dropped)
        name = None if path is None else str(path)
        return RecordingFacts(name, size, events, all_dropped, own=history.own, error=history.lost)

    def stop(self) -> None:
        """Switch recording off if it is ours."""
        self.history.stop()
